"""scaled_copy on the native CPU library: one call for all matrices."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import needed_library
from dovetail_kernels.gemm.weight import FORMATS
from dovetail_kernels.op import Arguments

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
CODES = {
    dtype: FORMATS.index(str(dtype).removeprefix("torch."))
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
}
ITEM_BYTES = np.zeros(max(CODES.values()) + 1, dtype=np.int64)
"""The bytes of a number, by the code of its type."""
for _dtype, _code in CODES.items():
    ITEM_BYTES[_code] = _dtype.itemsize
FIELDS = 11
"""Numbers of 8 bytes that one copy takes (args.h); the last one is the scale."""


class ScaledCopyArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [("copies", _pointer), ("count", _int64), ("broken", _pointer)]


Target = tuple[int, int, int, torch.dtype]
"""A copy's target: the address of its first number, the strides of rows and columns, in numbers,
and the type."""


class ScaledCopies:
    """Copies between tensors' memory, prepared once. They can be repeated for tensors of the same
    sizes at other addresses."""

    def __init__(
        self,
        sources: Iterable[torch.Tensor],
        targets: Iterable[Target],
        scales: Sequence[float],
    ) -> None:
        """Store the addresses of matrices, not the matrices. Shapes: C sources [A, B]"""
        native = needed_library()
        entries = [
            (
                one.data_ptr(),
                to,
                *one.shape,
                *one.stride(),
                row,
                column,
                CODES[one.dtype],
                CODES[its],
            )
            for one, (to, row, column, its) in zip(sources, targets, strict=True)
        ]
        self.places = np.empty((len(entries), FIELDS), dtype=np.int64)
        """Addresses of sources and targets in the first two columns. Shapes: [C, FIELDS]"""
        self.places[:, :-1] = np.array(entries, dtype=np.int64).reshape(-1, FIELDS - 1)
        self.places[:, -1] = np.array(scales, dtype=np.float64).view(np.int64)
        self._kernel = native.kernel("scaled_copy", ScaledCopyArgs)

    def sort(self) -> np.ndarray:
        """Sort the copies by source address; return their previous numbers. Shapes: -> [C] int64.
        Mutates: self"""
        order: np.ndarray = np.argsort(self.places[:, 0], kind="stable")
        self.places = self.places[order]
        return order

    @property
    def num_numbers(self) -> int:
        """Return how many numbers are copied."""
        return int((self.places[:, 2] * self.places[:, 3]).sum())

    def source_ends(self) -> np.ndarray:
        """Return the end addresses of the sources. Shapes: -> [C] int64"""
        lasts = ((self.places[:, 2:4] - 1) * self.places[:, 4:6]).sum(axis=1)
        ends: np.ndarray = self.places[:, 0] + (lasts + 1) * ITEM_BYTES[self.places[:, 8]]
        return ends

    def __call__(
        self, source_shift: int = 0, target_shift: int = 0, chosen: slice = slice(None)
    ) -> int:
        """Copy, with source and target addresses shifted by bytes; return the number of the first
        non-finite matrix among the `chosen`, -1 for none. Mutates: the memory of the targets"""
        places = self.places[chosen]
        if source_shift or target_shift:
            places = places.copy()
            places[:, 0] += source_shift
            places[:, 1] += target_shift
        broken = np.empty(1, dtype=np.int64)
        args = ScaledCopyArgs(
            copies=places.ctypes.data, count=len(places), broken=broken.ctypes.data
        )
        if self._kernel(ctypes.byref(args)):
            raise TypeError("scaled_copy takes float32, bfloat16 and float16")
        return int(broken[0])


def scaled_copies(
    sources: Iterable[torch.Tensor], targets: Iterable[torch.Tensor], scales: Sequence[float]
) -> torch.Tensor:
    """Copy matrices; return the number of the first that is not finite, -1 for none.

    Shapes: C sources and targets [A, B], scales [C] -> [] int64. Mutates: targets
    """
    places = []
    for source, target in zip(sources, targets, strict=True):
        assert source.shape == target.shape, f"{[*source.shape]} into {[*target.shape]}"
        row, column = target.stride()
        places.append((target.data_ptr(), row, column, target.dtype))
    return torch.tensor(ScaledCopies(sources, places, scales)())


def _why_not(arguments: Arguments) -> str | None:
    """Return why these arguments are not for the native kernel, or None."""
    found = {t.dtype for name in ("sources", "targets") for t in arguments[name]}
    others = found - set(CODES)
    return f"it does not take {others.pop()}" if others else None


NATIVE = native_implementation(scaled_copies, dtypes=tuple(CODES), why_not=_why_not)
