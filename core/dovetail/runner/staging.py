"""Staging: the host arrays of a step become tensors on the device by one copy.

Arrays lie one behind the other in pinned memory, at places that only their sizes decide, and reach
the same places on the device: a graph captured over them finds the next step's there. Two host
buffers take turns, so that the one that is copied from is not written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from dovetail.runner.device import DeviceCalls, Moment

ALIGNMENT_BYTES = 16
"""Triton compiles a kernel again for a pointer that is aligned less."""
LEAST_BYTES = 1 << 16
TORCH_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}


class _Buffer:
    """One host buffer, as an array and as a tensor, and when it was last copied from."""

    __slots__ = ("array", "copied", "tensor")

    def __init__(self, calls: DeviceCalls, num_bytes: int) -> None:
        self.tensor = calls.host_buffer(num_bytes)
        self.array = self.tensor.numpy()
        self.copied: Moment | None = None


class Staging:
    """Copies arrays to one place on the device, which grows only when a step has more than ever."""

    def __init__(self, device: torch.device, calls: DeviceCalls, num_bytes: int = 0) -> None:
        self._device = device
        self._calls = calls
        self._make(max(num_bytes, LEAST_BYTES))

    def _make(self, num_bytes: int) -> None:
        self._buffers = [_Buffer(self._calls, num_bytes) for _ in range(2)]
        self._target = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._turn = 0

    @property
    def num_bytes(self) -> int:
        """Return the room on the device."""
        return len(self._target)

    def upload(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Return the arrays as tensors on the device, valid until the next upload is queued.

        Mutates: self. Arrays are int32 or int64.
        """
        ends = _ends(arrays)
        total = ends[-1] if ends else 0
        if total > self.num_bytes:
            self._make(1 << (total - 1).bit_length())
        buffer = self._buffers[self._turn]
        self._turn ^= 1
        if buffer.copied is not None:
            buffer.copied.wait()
        tensors = []
        for array, end in zip(arrays, ends, strict=True):
            start = end - _padded(array.nbytes)
            part = slice(start, start + array.nbytes)
            buffer.array[part].view(array.dtype)[:] = array.ravel()
            flat = self._target[part].view(TORCH_DTYPES[array.dtype])
            tensors.append(flat.view(array.shape))
        self._target[:total].copy_(buffer.tensor[:total], non_blocking=True)
        buffer.copied = self._calls.mark()
        return tensors


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _ends(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return where each array's place ends."""
    return list(accumulate(_padded(array.nbytes) for array in arrays))
