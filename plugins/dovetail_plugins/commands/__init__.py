"""Plugins: the subcommands of `dovetail`, one file each, and what they share."""
