"""block_picks on the native CPU library."""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import needed_library
from dovetail_kernels.index_picks.native import CODES, why_not_cache
from dovetail_kernels.op import Arguments

MAX_HEADS = 64

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class BlockArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("q", _pointer),
        ("cache", _pointer),
        ("picks", _pointer),
        ("block_table", _pointer),
        ("query_start", _pointer),
        ("seq_lens", _pointer),
        ("q_stride", _int64),
        ("block_stride", _int64),
        ("table_stride", _int64),
        ("rows", _int64),
        ("cache_tokens", _int64),
        ("block_size", _int64),
        ("num_picked", _int64),
        ("num_local", _int64),
        ("num_heads", _int32),
        ("head_size", _int32),
        ("format", _int32),
        ("reserved", _int32),
    ]


def block_picks(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    num_picked: int,
    num_local: int,
) -> torch.Tensor:
    """Return the blocks that each head of a query picks. Blocks of the cache may be strided, each
    is contiguous.

    Shapes: q [T, H, D] float32, cache [N, P, D], block_table [R, C], query_start [R + 1], seq_lens
    [R] int32 -> [T, H, num_picked] int32
    """
    native = needed_library()
    q, table = q.contiguous(), block_table.contiguous()
    picks = torch.empty(*q.shape[:2], num_picked, dtype=torch.int32)
    args = BlockArgs(
        q=q.data_ptr(),
        cache=cache.data_ptr(),
        picks=picks.data_ptr(),
        block_table=table.data_ptr(),
        query_start=query_start.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        q_stride=q.stride(0),
        block_stride=cache.stride(0),
        table_stride=table.shape[1],
        rows=len(seq_lens),
        cache_tokens=cache.shape[1],
        block_size=block_size,
        num_picked=num_picked,
        num_local=num_local,
        num_heads=q.shape[1],
        head_size=q.shape[2],
        format=CODES[cache.dtype],
    )
    if native.kernel("block_picks", BlockArgs)(ctypes.byref(args)):
        raise MemoryError(f"no memory to score what {len(q)} tokens see")
    return picks


def _why_not(arguments: Arguments) -> str | None:
    heads = arguments["q"].shape[1]
    if heads > MAX_HEADS:
        return f"there are up to {MAX_HEADS} heads, not {heads}"
    return why_not_cache(arguments)


NATIVE = native_implementation(block_picks, why_not=_why_not)
