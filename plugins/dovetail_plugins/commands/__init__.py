"""Plugins: the subcommands of `dovetail`, one file each, and their shared code."""
