"""index_picks on the native CPU library."""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import needed_library
from dovetail_kernels.op import Arguments

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
CODES = {dtype: code for code, dtype in enumerate(FORMATS)}

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class IndexArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("q", _pointer),
        ("weights", _pointer),
        ("cache", _pointer),
        ("picks", _pointer),
        ("block_table", _pointer),
        ("query_start", _pointer),
        ("seq_lens", _pointer),
        ("q_stride", _int64),
        ("weights_stride", _int64),
        ("block_stride", _int64),
        ("table_stride", _int64),
        ("rows", _int64),
        ("block_tokens", _int64),
        ("num_picked", _int64),
        ("num_heads", _int32),
        ("head_size", _int32),
        ("format", _int32),
        ("reserved", _int32),
    ]


def index_picks(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    num_picked: int,
) -> torch.Tensor:
    """Return the positions that each query picks. Tokens and blocks may be strided, everything else
    in q, weights and cache is contiguous.

    Shapes: q [T, H, D], weights [T, H] float32, cache [N, P, D], block_table [R, B], query_start
    [R + 1], seq_lens [R] int32 -> [T, num_picked] int32
    """
    native = needed_library()
    picks = torch.empty(len(q), num_picked, dtype=torch.int32)
    table = block_table.contiguous()
    args = IndexArgs(
        q=q.data_ptr(),
        weights=weights.data_ptr(),
        cache=cache.data_ptr(),
        picks=picks.data_ptr(),
        block_table=table.data_ptr(),
        query_start=query_start.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        q_stride=q.stride(0),
        weights_stride=weights.stride(0),
        block_stride=cache.stride(0),
        table_stride=table.shape[1],
        rows=len(seq_lens),
        block_tokens=cache.shape[1],
        num_picked=num_picked,
        num_heads=q.shape[1],
        head_size=q.shape[2],
        format=CODES[cache.dtype],
    )
    if native.kernel("index_picks", IndexArgs)(ctypes.byref(args)):
        raise MemoryError(f"no memory to score what {len(q)} tokens see")
    return picks


def why_not_cache(arguments: Arguments) -> str | None:
    """Return why keys of this type cannot be read, None if they can."""
    if arguments["cache"].dtype in CODES:
        return None
    names = ", ".join(str(d).removeprefix("torch.") for d in FORMATS)
    return f"the cache holds one of {names}"


NATIVE = native_implementation(index_picks, why_not=why_not_cache)
