"""Imports of large libraries, without the garbage collector's work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Iterator[None]:
    """Collect no garbage inside a with block that imports torch, or the HTTP stack.

    What modules make stays; to walk it again and again is a sixth of the time that they take.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
