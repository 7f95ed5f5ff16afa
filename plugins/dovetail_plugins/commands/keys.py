"""`dovetail keys`: the API keys in a file."""

from __future__ import annotations

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class KeysCommand(Command):
    """`dovetail keys`."""

    info = Info(summary="add API keys to a file of --api-keys-file, and list them")
    parts = {
        "add": "dovetail_plugins.commands.keys_add:KeysAddCommand",
        "ls": "dovetail_plugins.commands.keys_ls:KeysLsCommand",
    }
