"""`dovetail cache`: the folders in which KV connectors keep blocks."""

from __future__ import annotations

HELP = "list, check and remove KV blocks that connectors keep in folders"
PARTS = {
    "ls": "dovetail.cli.cache_ls",
    "rm": "dovetail.cli.cache_rm",
    "verify": "dovetail.cli.cache_verify",
}
"""Name -> module."""
