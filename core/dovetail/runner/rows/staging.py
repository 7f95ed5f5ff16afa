"""Staging: uploads the host arrays of a step to the device in one copy.

Arrays are back to back in pinned memory, at offsets that depend only on their sizes, and go to the
same offsets on the device: a graph captured over them finds the next step's data there. Two host
buffers alternate, so that the one being copied is not written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from dovetail.runner.device import DeviceCalls, Moment

ALIGNMENT_BYTES = 16
"""Triton recompiles a kernel for a pointer with less alignment."""
LEAST_BYTES = 1 << 16
TORCH_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}


class _Buffer:
    """One host buffer, as an array and as a tensor, and the time it was last copied from."""

    __slots__ = ("array", "copied", "tensor")

    def __init__(self, calls: DeviceCalls, num_bytes: int) -> None:
        self.tensor = calls.host_buffer(num_bytes)
        self.array = self.tensor.numpy()
        self.copied: Moment | None = None


class Staging:
    """Copies arrays to one device buffer, which grows only for a step larger than all before."""

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
        """Return the bytes of the device buffer."""
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
    """Return the end offset of each array."""
    return list(accumulate(_padded(array.nbytes) for array in arrays))
