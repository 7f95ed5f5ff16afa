"""nan_check on the native CPU library."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Kernel, needed_library

_pointer, _int64, _int32, _uint32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint32


class NanCheckArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("bits", _pointer),
        ("size", _int64),
        ("value_bytes", _int32),
        ("infinity", _uint32),
    ]


@cache
def _kernel() -> Kernel:
    return needed_library().kernel("nan_check", NanCheckArgs)


def nan_check(bits: torch.Tensor, infinity: int) -> torch.Tensor:
    """Return whether a value is not a number. Shapes: bits [N] -> [] bool"""
    args = NanCheckArgs(bits.data_ptr(), bits.numel(), bits.itemsize, infinity)
    return torch.tensor(bool(_kernel()(ctypes.byref(args))))


NATIVE = native_implementation(nan_check, dtypes=(torch.int16, torch.int32))
