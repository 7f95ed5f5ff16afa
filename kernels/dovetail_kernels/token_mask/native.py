"""token_mask on the native CPU library."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Kernel, needed_library

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64


class TokenMaskArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("logits", _pointer),
        ("masks", _pointer),
        ("indices", _pointer),
        ("stride", _int64),
        ("count", _int64),
        ("words", _int64),
        ("size", _int64),
    ]


@cache
def _kernel() -> Kernel:
    native = needed_library()
    return native.kernel("token_mask", TokenMaskArgs)


def forbid(logits: torch.Tensor, masks: torch.Tensor, indices: torch.Tensor) -> None:
    """Forbid tokens (see the op). float32; masks and indices are contiguous. Mutates: logits"""
    count, words = masks.shape
    args = TokenMaskArgs(
        logits=logits.data_ptr(),
        masks=masks.data_ptr(),
        indices=indices.data_ptr(),
        stride=logits.stride(0),
        count=count,
        words=words,
        size=logits.shape[1],
    )
    _kernel()(ctypes.byref(args))


NATIVE = native_implementation(forbid)
