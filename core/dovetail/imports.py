"""Imports of large libraries, without the garbage collector's work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Iterator[None]:
    """Disable garbage collection inside a with block that imports torch or the HTTP stack.

    Imported modules stay alive anyway; collecting meanwhile takes a sixth of the import time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
