"""AdapterMemory: host memory that adapters are kept in, handed out again once they are dropped.

Half of what loading an adapter takes is the kernel's handing out of new memory, page by page as it
is first written to. Here it comes in one go, and that of the adapters dropped last is kept for the
next ones.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np
import torch

MAX_SPARE = 2
"""Pieces that are kept while nothing lies in them."""
MAX_WASTE = 2
"""A piece is handed out again where it is not more than so many times as large as it need be."""
FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
"""All pages at once, where the kernel can (Linux)."""


class AdapterMemory:
    """Several threads may take from it."""

    def __init__(self) -> None:
        self._spare: deque[mmap.mmap] = deque(maxlen=MAX_SPARE)

    def take(self, size: int, dtype: torch.dtype, *, is_filled: bool) -> torch.Tensor:
        """Return memory for so many numbers, zeros unless all of it `is_filled` later. Shapes:
        [size]. Mutates: self"""
        num_bytes = size * dtype.itemsize
        if not num_bytes:
            return torch.empty(0, dtype=dtype)
        piece = self._spare_of(num_bytes)
        is_new = piece is None
        piece = piece or mmap.mmap(-1, num_bytes, flags=FLAGS)
        held = np.frombuffer(piece, dtype=np.uint8, count=num_bytes)
        weakref.finalize(held, self._spare.append, piece).atexit = False
        memory = torch.from_numpy(held).view(dtype)
        return memory if is_new or is_filled else memory.zero_()

    def _spare_of(self, num_bytes: int) -> mmap.mmap | None:
        """Return a piece of the right size in which nothing lies any more. Mutates: self"""
        for piece in list(self._spare):
            if num_bytes <= len(piece) <= MAX_WASTE * num_bytes:
                try:
                    self._spare.remove(piece)
                except ValueError:  # another thread has taken it
                    continue
                return piece
        return None
