"""`dovetail config`: the settings of a server that is not started: shown, or checked."""

from __future__ import annotations

HELP = "show or check the settings of a server without starting it"

PARTS = {
    "show": "dovetail.cli.config_show",
    "check": "dovetail.cli.config_check",
}
"""Subcommand -> the module that is it."""
