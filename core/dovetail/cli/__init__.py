"""The `dovetail` command. Subcommands are modules that are imported only when they run."""
