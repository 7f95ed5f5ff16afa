"""paged_attention in Triton, seen from the host: sizes of tiles and grids, and the launches.

What a launch needs beyond its tensors is known on the host before the step runs (`Extent`), so no
launch reads the device, and a launch captured in a graph stays valid for any lengths up to those it
was captured with. Knows no layer and no backend; the kernels are in `triton_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu import interprets
from dovetail_kernels.op import Arguments
from dovetail_kernels.paged_attention import triton_kernels as kernels

LOG2_E = 1.4426950408889634
LEAST_SPLIT = 256
"""Keys that a program of a decode walks at least: four tiles of a head of 128."""
DECODE_PROGRAMS = 8192
"""Programs of a decode at most, rows by kv heads aside: on a device of 132 multiprocessors four
waves. Those that find no split end at once, which is not free where there are many."""
TILE_NUMBERS = 8192
"""Keys times head size of a decode's tile: 16 KiB in 16 bits, of which two stages lie in wait."""
SMALL_SHARED_BYTES = 160 << 10
"""Devices with less shared memory a multiprocessor get fewer stages."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What the host knows of a step. `max_query_tokens` and `max_seq_tokens` may be more than any
    row has; `has_decodes` says whether a row may have one token."""

    max_query_tokens: int
    max_seq_tokens: int
    has_decodes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a layer attends (see the op)."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    is_causal: bool = True
    may_round: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Lines and keys of a product, and how its program runs."""

    lines: int
    keys: int
    num_warps: int
    num_stages: int


def extent_of(query_start: torch.Tensor, seq_lens: torch.Tensor) -> Extent:
    """Return a step's extent by looking at the device, which waits for it: never within a step."""
    counts = query_start.diff().tolist()
    return Extent(
        max_query_tokens=max(counts, default=0),
        max_seq_tokens=max(seq_lens.tolist(), default=0),
        has_decodes=1 in counts,
    )


def prepare(arguments: Arguments) -> Arguments:
    """Return a case's arguments with its extent, so that timing does not wait in every call."""
    extent = extent_of(arguments["query_start"], arguments["seq_lens"])
    return {**arguments, "extent": extent}


def run(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    is_causal: bool = True,
    sinks: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    may_round: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    extent: Extent | None = None,
) -> torch.Tensor:
    """Return the attended values (see the reference). Without an `extent` the device is asked."""
    rules = Rules(
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        is_causal=is_causal,
        may_round=may_round,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    found = extent or extent_of(query_start, seq_lens)
    return attend(q, cache, block_table, query_start, seq_lens, rules, found, sinks, scales)


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    rules: Rules,
    extent: Extent,
    sinks: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended values. Tokens and heads of q may lie apart; a row of length 0 gets 0.

    Shapes: q [T, H, D], cache [2, N, P, K, D], block_table [R, B], query_start [R + 1],
    seq_lens [R], sinks [H], scales [2, N, P, K] -> [T, H, D]
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launch = _Launch(q, out, cache, block_table, query_start, seq_lens, rules, sinks, scales)
    if extent.max_query_tokens > 1:
        launch.prefill()
    if extent.has_decodes:
        launch.decode(extent.max_seq_tokens)
    return out


class _Launch:
    """The arguments that the kernels share, in the kernels' order."""

    def __init__(
        self,
        q: torch.Tensor,
        out: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        rules: Rules,
        sinks: torch.Tensor | None,
        scales: torch.Tensor | None,
    ) -> None:
        self.q, self.out, self.cache, self.sinks, self.scales = q, out, cache, sinks, scales
        self.rows = (block_table, query_start, seq_lens)
        self.rules = rules
        self.kv_heads, self.size = cache.shape[3], cache.shape[4]
        self.group = q.shape[1] // self.kv_heads
        self.dtype = _product_dtype(q.dtype, cache.dtype, may_round=rules.may_round)
        self.strides = (
            *q.stride()[:2], out.stride(0), block_table.stride(0), *cache.stride()[:4],
            *((0, 0, 0) if scales is None else scales.stride()[:3]),
        )  # fmt: skip
        self.numbers = (*_score_scales(rules), rules.v_scale, rules.window or 0)
        self.own: dict[str, Any] = {
            "SIZE": self.size,
            "WIDE": max(16, triton.next_power_of_2(self.size)),
            "HAS_WINDOW": rules.window is not None,
            "HAS_SINKS": sinks is not None,
            "LOG2_E": LOG2_E,
        }
        self.shared: dict[str, Any] = self.own | {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "BLOCK_TOKENS": cache.shape[2],
            "HAS_CAP": rules.soft_cap is not None,
            "HAS_SCALES": scales is not None,
            "DTYPE": DTYPES[self.dtype],
        }

    def prefill(self) -> None:
        """Attend the rows of several tokens. Mutates: out"""
        tile = prefill_tile(self.dtype, self.own["WIDE"], self.group, _has_room(self.q.device))
        queries = tile.lines // self.group
        rows = self.rows[2].shape[0]
        grid = ((self.q.shape[0] // queries + rows) * self.kv_heads,)
        kernels.prefill[grid](
            self.q, self.out, self.cache, self.scales, self.sinks, *self.rows, rows,
            *self.strides, *self.numbers, **self.shared, QUERIES=queries, LANES=tile.lines,
            KEYS=tile.keys, IS_CAUSAL=self.rules.is_causal, num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )  # fmt: skip

    def decode(self, max_seq_tokens: int) -> None:
        """Attend the rows of one token. Mutates: out"""
        tile = decode_tile(self.dtype, self.own["WIDE"], self.group, _has_room(self.q.device))
        rows, heads = self.rows[2].shape[0], self.q.shape[1]
        splits = most_splits(self.kv_heads)
        visible = min(max_seq_tokens, self.rules.window or max_seq_tokens)
        kept = min(splits, max(1, triton.cdiv(visible, LEAST_SPLIT)))
        pairs = rows * self.kv_heads
        spread = min(kept, max(1, DECODE_PROGRAMS // pairs))
        kept_parts = rows * heads * kept if kept > 1 else 0
        sums = self.q.new_empty((kept_parts, self.size), dtype=torch.float32)
        levels = self.q.new_empty((kept_parts, 2), dtype=torch.float32)
        cut: dict[str, Any] = {"KEYS": tile.keys, "LEAST": LEAST_SPLIT, "SPLITS": splits}
        kernels.decode[(pairs, spread)](
            self.q, self.out, sums, levels, self.cache, self.scales, self.sinks, *self.rows, kept,
            *self.strides, *self.numbers, **self.shared, **cut, LANES=tile.lines,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        if kept > 1:
            kernels.join[(rows * heads,)](
                self.out, sums, levels, self.sinks, *self.rows[1:], kept, self.out.stride(0),
                *self.numbers[2:], **self.own, **cut, HEADS=heads,
                num_warps=max(1, splits * self.own["WIDE"] // 1024),
            )  # fmt: skip


def most_splits(kv_heads: int) -> int:
    """Return into how many splits a row's keys are cut at most: enough that one long row fills a
    device. Of the model alone, so that a row is cut the same way in any batch."""
    return min(64, max(8, triton.next_power_of_2(128 // kv_heads or 1)))


def prefill_tile(dtype: torch.dtype, wide: int, group: int, has_room: bool) -> Tile:
    """Return the tile of a prefill for heads of `wide` numbers.

    In 16 bits: 128 lines are two warp groups of 64, whose sums take 64 registers a thread at 128
    numbers and 128 at 256. In float32 products run on plain cores, whose operands take registers:
    larger tiles than these spill.
    """
    if dtype == torch.float32:
        lines, keys, warps, stages = 32, 16 if wide > 64 else 32, 8 if wide > 64 else 4, 2
    elif wide > 128:
        lines, keys, warps, stages = 128 if has_room else 64, 32, 8 if has_room else 4, 2
    else:
        lines, keys, warps, stages = 128, 64, 8 if wide == 128 else 4, 3 if has_room else 2
    return Tile(
        lines=max(lines, triton.next_power_of_2(group)),
        keys=keys,
        num_warps=warps,
        num_stages=stages,
    )


def decode_tile(dtype: torch.dtype, wide: int, group: int, has_room: bool) -> Tile:
    """Return the tile of a decode: a product has 16 lines at least, and keys come in the same
    bytes whatever the head size."""
    keys = TILE_NUMBERS // wide * 2 // dtype.itemsize
    return Tile(
        lines=max(16, triton.next_power_of_2(group)),
        keys=min(64 if dtype == torch.float32 else 128, max(16, keys)),
        num_warps=4,
        num_stages=3 if has_room else 2,
    )


def _score_scales(rules: Rules) -> tuple[float, float]:
    """Return what products are multiplied by, and the cap: scores are powers of 2 at the end."""
    scale = rules.scale * rules.k_scale
    if rules.soft_cap is None:
        return scale * LOG2_E, 0.0
    return scale / rules.soft_cap, rules.soft_cap * LOG2_E


def _product_dtype(q_dtype: torch.dtype, kv_dtype: torch.dtype, *, may_round: bool) -> torch.dtype:
    """Return the type of products: one that holds queries and keys, float32 when interpreted."""
    if interprets():
        return torch.float32
    if q_dtype == torch.float32:
        is_narrow = kv_dtype == torch.bfloat16 or kv_dtype in FLOAT8
        return torch.bfloat16 if may_round and is_narrow else torch.float32
    return q_dtype if kv_dtype in (q_dtype, torch.int8, *FLOAT8) else torch.float32


@cache
def _has_room(device: torch.device) -> bool:
    """Return whether a multiprocessor's shared memory holds three stages."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_multiprocessor) >= SMALL_SHARED_BYTES
