"""`dovetail engines`: the engines of a server, which may leave and come back while it runs."""

from __future__ import annotations

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

_PARTS = "dovetail_plugins.commands.engines_parts"


class EnginesCommand(Command):
    """`dovetail engines`."""

    info = Info(summary="list the engines of a server, end some, and start them again")
    parts = {
        "list": f"{_PARTS}:ListCommand",
        "drain": f"{_PARTS}:DrainCommand",
        "remove": f"{_PARTS}:RemoveCommand",
        "add": f"{_PARTS}:AddCommand",
    }
