"""bit_fields on the native CPU library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from dovetail_kernels.bit_fields.reference import Plane
from dovetail_kernels.cpu.blocks import large_empty
from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Kernel, needed_library

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
MAX_PLANES = 3


class PlaneArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [(name, _int32) for name in ("start", "bytes", "bits", "run", "shift")]


class BitFieldsArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("blocks", _pointer),
        ("values", _pointer),
        ("count", _int64),
        ("block_bytes", _int64),
        ("block_values", _int64),
        ("num_planes", _int64),
        ("planes", PlaneArgs * MAX_PLANES),
    ]


@cache
def _kernel() -> Kernel:
    return needed_library().kernel("bit_fields", BitFieldsArgs)


def values_of(blocks: torch.Tensor, planes: Sequence[Plane]) -> torch.Tensor:
    """Return the values of blocks. Shapes: blocks [n, S] uint8 -> [n, B] uint8"""
    blocks = blocks.contiguous()
    args = fields_args(planes, blocks.shape[1])
    values = large_empty(len(blocks) * args.block_values, needed_library())
    args.blocks, args.values, args.count = blocks.data_ptr(), values.data_ptr(), len(blocks)
    _kernel()(ctypes.byref(args))
    return values.view(-1, args.block_values)


def fields_args(planes: Sequence[Plane], block_bytes: int) -> BitFieldsArgs:
    """Return how blocks hold their values, without blocks."""
    fields = [PlaneArgs(p.start, p.stop - p.start, p.bits, p.run, p.shift) for p in planes]
    return BitFieldsArgs(
        block_bytes=block_bytes,
        block_values=planes[0].num_values,
        num_planes=len(planes),
        planes=(PlaneArgs * MAX_PLANES)(*fields),
    )


NATIVE = native_implementation(
    values_of,
    dtypes=(torch.uint8,),
    why_not=lambda arguments: (
        None if len(arguments["planes"]) <= MAX_PLANES else f"more than {MAX_PLANES} planes"
    ),
)
