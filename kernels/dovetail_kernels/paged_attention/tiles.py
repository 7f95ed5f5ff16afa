"""Tiles of the GPU's attention: lines and keys of a product, by head size, type and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from dovetail_kernels.gpu.facts import facts_of
from dovetail_kernels.gpu.table import best
from dovetail_kernels.gpu.tune import Choice

OP_NAME = "paged_attention"
TILE_NUMBERS = 8192
"""Keys times head size of a decode's tile: 16 KiB in 16 bits, with two stages in flight."""
SMALL_SHARED_BYTES = 160 << 10
"""Devices whose blocks have less shared memory get fewer stages."""

GROUP_PRODUCTS = range(90, 120)
"""Capabilities with warp-group products, whose operands are in shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Lines and keys of a product, and how its program runs."""

    lines: int
    keys: int
    num_warps: int
    num_stages: int


def prefill_tile(
    dtype: torch.dtype, cached: torch.dtype, wide: int, group: int, device: torch.device
) -> Tile:
    """Return the tile of a prefill for heads of `wide` numbers, cached as `cached`.

    int8's scales take registers, and so do 8-bit floats with the sums of large heads.
    """
    kind, usual = "prefill", _prefill_tile(dtype, wide, device)
    is_large = cached == torch.int8 or (cached.itemsize == 1 and wide > 128)
    if is_large and dtype != torch.float32:
        kind, usual = "prefill halved", replace(usual, keys=usual.keys // 2, num_warps=8)
    tile = best(OP_NAME, _key(kind, dtype, wide), usual, device)
    return replace(tile, lines=max(tile.lines, _power(group)))


def adding_tile(tile: Tile, wide: int, group: int) -> Tile:
    """Return the tile of a prefill that also adds its results to earlier sums: larger ones spill.
    Lines change no number."""
    lines = tile.lines if wide <= 128 else min(tile.lines, 64)
    return replace(tile, lines=max(lines, _power(group)))


def decode_tile(dtype: torch.dtype, wide: int, group: int, device: torch.device) -> Tile:
    """Return the tile of a decode: a product has 16 lines at least, and keys come in the same
    bytes whatever the head size."""
    keys = TILE_NUMBERS // wide * 2 // dtype.itemsize
    usual = Tile(
        lines=16,
        keys=min(64 if dtype == torch.float32 else 128, max(16, keys)),
        num_warps=4,
        num_stages=3 if _has_room(device) else 2,
    )
    tile = best(OP_NAME, _key("decode", dtype, wide), usual, device)
    return replace(tile, lines=max(tile.lines, _power(group)))


def choices(device: str) -> Sequence[Choice]:
    """Return the steps that may be tuned: prefills and decodes in bfloat16 by head size."""
    tiles: dict[str, list[dict[str, int]]] = {
        kind: [
            {"keys": keys, "num_warps": warps, "num_stages": stages}
            for keys in sizes
            for warps in (4, 8)
            for stages in (2, 3, 4)
        ]
        for kind, sizes in (("prefill", (32, 64, 128)), ("decode", (32, 64, 128)))
    }
    return [
        Choice(
            key=_key(kind, torch.bfloat16, wide),
            run=_runner(kind, wide, device),
            candidates=candidates,
        )
        for kind, candidates in tiles.items()
        for wide in (64, 128, 256)
    ]


def _runner(kind: str, wide: int, device: str) -> Callable[[], Any]:
    """Return a call over 8192 keys: of 32 heads that share 8, in one row or a token each in 32."""
    from dovetail_kernels.paged_attention.cases import tuning_case
    from dovetail_kernels.paged_attention.triton import prepare, run

    rows = ((8192, 8192),) if kind == "prefill" else ((1, 8192),) * 32
    arguments = prepare(tuning_case(rows, wide).build(torch.device(device)))
    return partial(run, **arguments)


def _key(kind: str, dtype: torch.dtype, wide: int) -> str:
    return f"{kind} {str(dtype).removeprefix('torch.')} {wide}"


def _prefill_tile(dtype: torch.dtype, wide: int, device: torch.device) -> Tile:
    """Return the tile that follows from the head size.

    In 16 bits: 128 lines are two warp groups of 64, whose sums take 64 registers a thread at 128
    numbers and 128 at 256. Without products of warp groups, both operands take registers too. In
    float32 products run on plain cores, whose operands do. Larger tiles spill.
    """
    if dtype == torch.float32:
        lines, keys, warps, stages = 32, 16 if wide > 64 else 32, 8 if wide > 64 else 4, 2
    elif facts_of(device).capability not in GROUP_PRODUCTS:
        lines, keys, warps = 64 if wide > 128 else 128, 32 if wide > 64 else 64, 8
        stages = 3 if wide <= 128 and _has_room(device) else 2
    elif wide > 128:
        lines, keys, warps, stages = 128, 32, 8, 2
    else:
        lines, keys, warps, stages = 128, 64, 8 if wide == 128 else 4, 3
    return Tile(
        lines=lines,
        keys=keys,
        num_warps=warps,
        num_stages=stages,
    )


def _has_room(device: torch.device) -> bool:
    """Return whether shared memory holds three stages."""
    return facts_of(device).shared_bytes >= SMALL_SHARED_BYTES


def _power(number: int) -> int:
    """Return the next power of two."""
    return 1 << (number - 1).bit_length()
