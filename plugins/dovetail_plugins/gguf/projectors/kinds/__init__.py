"""The types of projector files. Every module with a table PROJECTORS adds to them."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail_plugins.gguf.projectors.projector import Projector


@cache
def projectors() -> dict[str, Projector]:
    """Return clip.projector_type -> how such files are read."""
    found: dict[str, Projector] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found |= getattr(import_module(module.name), "PROJECTORS", {})
    return found
