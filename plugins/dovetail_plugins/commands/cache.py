"""`dovetail cache`: the folders in which KV connectors keep blocks."""

from __future__ import annotations

HELP = "list, check and remove KV blocks that connectors keep in folders"
PARTS = {
    "ls": "dovetail_plugins.commands.cache_ls",
    "rm": "dovetail_plugins.commands.cache_rm",
    "verify": "dovetail_plugins.commands.cache_verify",
}
"""Name -> module."""
