"""`dovetail cache`: the folders in which KV connectors store blocks."""

from __future__ import annotations

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class CacheCommand(Command):
    """`dovetail cache`."""

    info = Info(summary="list, check and remove KV blocks that connectors keep in folders")
    parts = {
        "ls": "dovetail_plugins.commands.cache_ls:CacheLsCommand",
        "rm": "dovetail_plugins.commands.cache_rm:CacheRmCommand",
        "verify": "dovetail_plugins.commands.cache_verify:CacheVerifyCommand",
    }
