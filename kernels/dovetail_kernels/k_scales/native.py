"""k_scales on the native CPU library."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail_kernels.cpu.blocks import large_empty
from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Kernel, needed_library
from dovetail_kernels.k_scales.reference import Scales

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64


class KScalesArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("blocks", _pointer),
        ("codes", _pointer),
        ("offset_codes", _pointer),
        ("steps", _pointer),
        ("offset_steps", _pointer),
        ("count", _int64),
        ("block_bytes", _int64),
    ]


@cache
def _kernel() -> Kernel:
    return needed_library().kernel("k_scales", KScalesArgs)


def scales_of(blocks: torch.Tensor) -> Scales:
    """Return the scales and offsets of blocks. Shapes: blocks [n, S] uint8"""
    blocks = blocks.contiguous()
    count, size = blocks.shape
    memory = large_empty(20 * count, needed_library())
    codes, offset_codes, steps, offset_steps = memory.split(
        [8 * count, 8 * count, 2 * count, 2 * count]
    )
    pointers = [t.data_ptr() for t in (blocks, codes, offset_codes, steps, offset_steps)]
    _kernel()(ctypes.byref(KScalesArgs(*pointers, count, size)))
    return (
        codes.view(torch.int8).view(count, 8),
        steps.view(torch.float16).view(count, 1),
        offset_codes.view(torch.int8).view(count, 8),
        offset_steps.view(torch.float16).view(count, 1),
    )


NATIVE = native_implementation(scales_of, dtypes=(torch.uint8,))
