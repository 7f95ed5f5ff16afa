"""checksum on the native CPU library."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail_kernels.checksum.reference import LANES, PIECE_BYTES
from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Kernel, needed_library

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64


class ChecksumArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [("data", _pointer), ("sums", _pointer), ("size", _int64), ("piece", _int64)]


@cache
def _kernel() -> Kernel:
    return needed_library().kernel("checksum", ChecksumArgs)


def sums_of(data: torch.Tensor) -> torch.Tensor:
    """Return two sums a lane and piece. Shapes: data [N] uint8 -> [pieces, 2, 16] int32"""
    sums = torch.empty(-(-len(data) // PIECE_BYTES), 2, LANES, dtype=torch.int32)
    args = ChecksumArgs(data.data_ptr(), sums.data_ptr(), len(data), PIECE_BYTES)
    _kernel()(ctypes.byref(args))
    return sums


NATIVE = native_implementation(sums_of, dtypes=(torch.uint8,))
