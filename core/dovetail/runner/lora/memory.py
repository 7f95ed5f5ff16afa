"""AdapterMemory: host memory for adapters, reused after they are dropped.

Half the time of loading an adapter goes to the kernel mapping new memory, page by page on first
write. Here it is mapped as a whole, and the memory of the last dropped adapters is reused.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np
import torch

MAX_SPARE = 2
"""Maximum number of unused pieces."""
MAX_WASTE = 2
"""A piece is reused if it is at most this many times as large as needed."""
FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
"""Maps all pages immediately if the kernel can (Linux)."""


class AdapterMemory:
    """Thread-safe."""

    def __init__(self) -> None:
        self._spare: deque[mmap.mmap] = deque(maxlen=MAX_SPARE)

    def take(self, size: int, dtype: torch.dtype, *, is_filled: bool) -> torch.Tensor:
        """Return memory for `size` numbers, zeroed unless the caller fills all of it (`is_filled`).
        Shapes: [size]. Mutates: self"""
        num_bytes = size * dtype.itemsize
        if not num_bytes:
            return torch.empty(0, dtype=dtype)
        piece = self._spare_of(num_bytes)
        is_new = piece is None
        piece = piece or mmap.mmap(-1, num_bytes, flags=FLAGS)
        array = np.frombuffer(piece, dtype=np.uint8, count=num_bytes)
        weakref.finalize(array, self._spare.append, piece).atexit = False
        memory = torch.from_numpy(array).view(dtype)
        return memory if is_new or is_filled else memory.zero_()

    def _spare_of(self, num_bytes: int) -> mmap.mmap | None:
        """Return an unused piece of a suitable size. Mutates: self"""
        for piece in list(self._spare):
            if num_bytes <= len(piece) <= MAX_WASTE * num_bytes:
                try:
                    self._spare.remove(piece)
                except ValueError:  # another thread has taken it
                    continue
                return piece
        return None
