"""Memory for a tensor that lives until it is copied, returned to the system when it is dropped.

malloc would keep it and let small objects settle in it, so that the next tensor finds no room
there: a third of a checkpoint in such holes was measured.
"""

from __future__ import annotations

import math
import mmap

import torch

SMALL_BYTES = 2**20
"""Below this malloc is left to it."""


def passing_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an unfilled tensor in separate memory."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < SMALL_BYTES:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=dtype).view(shape)
