"""`dovetail config`: the settings of a server that is not started: shown, or checked."""

from __future__ import annotations

HELP = "show or check the settings of a server without starting it"

PARTS = {
    "show": "dovetail_plugins.commands.config_show",
    "check": "dovetail_plugins.commands.config_check",
}
"""Subcommand -> the module that is it."""
