"""How weights become what the native library's products read: panels, and scales in their order."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch

from dovetail_kernels.bit_fields.native import fields_args
from dovetail_kernels.cpu.blocks import BLOCKS
from dovetail_kernels.cpu.library import Library
from dovetail_kernels.gemm.native_args import FieldsPackArgs, PackArgs, SpreadArgs
from dovetail_kernels.gemm.native_vectors import is_of_vectors
from dovetail_kernels.gemm.weight import FLOATS, FORMATS, Weight

NO_MEMORY = 2
"""What gemm_pack returns without memory."""
SHARED_BYTES = 64 << 10
"""Scales of fewer bytes have memory of their own, not whole pages of a block."""


def takes_rows(format: str) -> bool:
    """Return whether rows at any addresses can be packed: of floats, which are packed as they
    are."""
    return format.partition("_")[0] in FLOATS


def pack_args(format: str, outputs: int, inputs: int, *, is_gated: bool) -> PackArgs:
    """Return the arguments that say what is packed, without any memory."""
    return PackArgs(
        in_size=inputs, out_size=outputs, format=FORMATS.index(format), is_gated=int(is_gated)
    )


def pack_into(args: PackArgs, memory: torch.Tensor, kernel: Callable[[Any], int]) -> None:
    """Pack a weight. Mutates: memory. Raises: MemoryError"""
    args.packed, args.packed_bytes = memory.data_ptr(), memory.nbytes
    status = kernel(ctypes.byref(args))
    if status == NO_MEMORY:
        raise MemoryError(f"no memory for rows of {args.in_size} values")
    if status:
        raise AssertionError(
            f"{memory.nbytes} bytes are not what {args.out_size} x {args.in_size} take"
        )


def _prefix(weight: Weight) -> str:
    """Return the prefix of the functions that pack a weight and unpack it."""
    return "vectors" if is_of_vectors(weight) else "gemm"


def pack_panels(
    native: Library, weight: Weight, is_gated: bool, vectors: object
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return the packed bytes, the number of panels and the columns of each."""
    outputs, inputs = weight.shape
    values = weight.values.contiguous()
    signs = None if weight.signs is None else weight.signs.contiguous()
    args = pack_args(weight.format, outputs, inputs, is_gated=is_gated)
    args.weight, args.signs, args.vectors = values.data_ptr(), address(signs), vectors
    reference = ctypes.byref(args)
    columns = native.kernel("gemm_panel_columns", PackArgs)(reference)
    panels = _panels(outputs, columns, is_gated)
    num_bytes = panels[0] * native.kernel(_prefix(weight) + "_panel_bytes", PackArgs)(reference)
    memory = BLOCKS.empty(num_bytes, native)
    if weight.fields is None:
        pack_into(args, memory, native.kernel(_prefix(weight) + "_pack", PackArgs))
    else:
        fields = fields_args(weight.fields.planes, weight.fields.block_bytes)
        kernel = native.kernel("gemm_pack_fields", FieldsPackArgs)
        pack_into(args, memory, lambda _: kernel(ctypes.byref(FieldsPackArgs(args, fields))))
    return memory, panels


def _panels(outputs: int, columns: int, is_gated: bool) -> tuple[int, int]:
    """Return the panels of a matrix, and the columns of each."""
    if is_gated:
        return -(-(outputs // 2) // (columns // 2)), columns
    return -(-outputs // columns), columns


def spread_over(
    scales: torch.Tensor | None, panels: tuple[int, int], is_gated: bool, native: Library
) -> torch.Tensor | None:
    """Return scales in the order of the panels. Shapes: [N] -> [panels, columns],
    [N, groups] -> [panels, groups, columns]; padding is 0"""
    if scales is None:
        return None
    shape = (panels[0], *scales.shape[1:], panels[1])
    num_bytes = math.prod(shape) * scales.itemsize
    if num_bytes >= SHARED_BYTES:
        memory = BLOCKS.empty(num_bytes, native)
    else:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
    row_bytes, group_bytes = (*(step * scales.itemsize for step in scales.stride()), 0)[:2]
    args = SpreadArgs(
        source=scales.data_ptr(),
        to=memory.data_ptr(),
        out_size=len(scales),
        groups=math.prod(scales.shape[1:]),
        row_bytes=row_bytes,
        group_bytes=group_bytes,
        number_bytes=scales.itemsize,
        is_gated=int(is_gated),
    )
    native.kernel("gemm_spread", SpreadArgs)(ctypes.byref(args))
    return memory.view(scales.dtype).view(shape)


def address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
