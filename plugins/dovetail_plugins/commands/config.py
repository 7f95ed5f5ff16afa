"""`dovetail config`: shows, checks or translates the settings of a server without starting it."""

from __future__ import annotations

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class ConfigCommand(Command):
    """`dovetail config`."""

    info = Info(summary="show, check or translate the settings of a server without starting it")
    parts = {
        "show": "dovetail_plugins.commands.config_show:ConfigShowCommand",
        "check": "dovetail_plugins.commands.config_check:ConfigCheckCommand",
        "translate": "dovetail_plugins.commands.config_translate:ConfigTranslateCommand",
    }
