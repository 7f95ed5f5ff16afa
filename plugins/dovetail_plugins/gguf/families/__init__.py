"""The architectures of GGUF files. Every module with a table FAMILIES adds to them."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail_plugins.gguf.families.family import Family


@cache
def families() -> dict[str, Family]:
    """Return general.architecture -> how files of it are read."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found |= getattr(import_module(module.name), "FAMILIES", {})
    return found
