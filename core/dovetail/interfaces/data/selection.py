"""Selection: a chosen plugin, as every process receives it. Pure data."""

from __future__ import annotations

from typing import Any

import msgspec


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """One chosen plugin as data: child processes load `target` and never look up the name again.

    `target` is "package.module:attribute", or "/path/file.py:attribute" for a plugin file.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    options: dict[str, Any] = {}
