"""Selection: a chosen plugin, as every process gets it. Pure data."""

from __future__ import annotations

from typing import Any

import msgspec


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """One chosen plugin as data: children load `target`, they never search for the name again.

    `target` is "package.module:attribute", or "/path/file.py:attribute" for a plugin file.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    options: dict[str, Any] = {}
