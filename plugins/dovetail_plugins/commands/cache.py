"""`dovetail cache`: stored KV blocks and packed weights."""

from __future__ import annotations

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class CacheCommand(Command):
    """`dovetail cache`."""

    info = Info(summary="list, check and remove stored KV blocks and packed weights")
    parts = {
        "ls": "dovetail_plugins.commands.cache_ls:CacheLsCommand",
        "rm": "dovetail_plugins.commands.cache_rm:CacheRmCommand",
        "verify": "dovetail_plugins.commands.cache_verify:CacheVerifyCommand",
    }
