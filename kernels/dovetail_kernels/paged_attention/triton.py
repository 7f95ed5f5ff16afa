"""paged_attention in Triton, seen from the host: sizes of tiles and grids, and the launches.

The host knows all other parameters of a launch before the step runs (`StepExtent`), so no launch
reads the device, and a launch captured in a graph stays valid for all smaller lengths.
Knows no layer and no backend; the kernels are in `triton_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu import interprets
from dovetail_kernels.op import Arguments
from dovetail_kernels.paged_attention import triton_kernels as kernels
from dovetail_kernels.paged_attention.tiles import adding_tile, decode_tile, prefill_tile

LOG2_E = 1.4426950408889634
LEAST_SPLIT = 256
"""Keys that a program of a decode walks at least: four tiles of a head of 128."""
DECODE_PROGRAMS = 8192
"""Programs of a decode at most, rows by kv heads aside: on a device of 132 multiprocessors four
waves. Programs that find no split end immediately, but many of them still cost time."""
SPAN = 2048
"""Keys after which a prefill's sums begin anew, counted from a row's first: a multiple of every
tile's, and the same for all, so that neither chunks nor neighbours change how keys are summed."""
PREFILL_PROGRAMS = 264
"""Programs of a prefill that fill a device: if there are fewer, each span gets its own."""
SPANS_BYTES = 64 << 20
"""Memory that the sums of spans may take."""
ADDED = ("KV_HEADS", "GROUP", "SIZE", "REACH", "HAS_SINKS", "HAS_LSE", "LOG2_E")
"""What adding up asks of a layer."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExtent:
    """The facts of a step that the host knows. `max_query_tokens` and `max_seq_tokens` may be more
    than any row has; `has_decodes` says whether a row may have one token."""

    max_query_tokens: int
    max_seq_tokens: int
    has_decodes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRules:
    """How a layer attends (see the op)."""

    scale: float
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    is_causal: bool = True
    may_round: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def reach(self) -> tuple[str, int]:
        """Return by what rule keys are seen, and its number."""
        if self.chunk is not None:
            assert self.is_causal and self.window is None, "chunks are causal and not windows"
            return "chunk", self.chunk
        return ("all", 0) if self.window is None else ("window", self.window)


def extent_of(query_start: torch.Tensor, seq_lens: torch.Tensor) -> StepExtent:
    """Return a step's extent by looking at the device, which waits for it: never within a step."""
    counts = query_start.diff().tolist()
    return StepExtent(
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
    chunk: int | None = None,
    soft_cap: float | None = None,
    is_causal: bool = True,
    sinks: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    may_round: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    alibi_slopes: torch.Tensor | None = None,
    extent: StepExtent | None = None,
) -> torch.Tensor:
    """Return the attended values (see the reference). Without `extent` it reads the device."""
    rules = LayerRules(
        scale=scale,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        is_causal=is_causal,
        may_round=may_round,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    found = extent or extent_of(query_start, seq_lens)
    return attend(
        q, cache, block_table, query_start, seq_lens, rules, found, sinks, scales,
        slopes=alibi_slopes,
    )  # fmt: skip


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    rules: LayerRules,
    extent: StepExtent,
    sinks: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    bits: tuple[int, int] = (8, 8),
) -> torch.Tensor:
    """Return the attended values. Tokens and heads of q may be strided; a row of length 0 gets 0.
    `lse` gets the log-sum-exps of the scores, without sinks. `slopes` are ALiBi's. With scales
    `bits` are the bits of a key's number and of a value's (see `integer_caches`); below 8, cache
    and scales come from `triton_packed.parts_of`.

    Shapes: q [T, H, D], cache [2, N, P, K, D], block_table [R, B], query_start [R + 1], seq_lens
    [R], sinks [H], scales [2, N, P, K], lse [T, H] and slopes [H] float32 -> [T, H, D].
    Mutates: lse
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    rows = (block_table, query_start, seq_lens)
    launch = _Launch(q, out, cache, rows, rules, sinks, scales, lse, slopes, bits)
    if extent.max_query_tokens > 1:
        launch.prefill(extent.max_seq_tokens)
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
        rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        rules: LayerRules,
        sinks: torch.Tensor | None,
        scales: torch.Tensor | None,
        lse: torch.Tensor | None,
        slopes: torch.Tensor | None,
        bits: tuple[int, int],
    ) -> None:
        self.q, self.out, self.cache, self.sinks, self.scales = q, out, cache, sinks, scales
        self.lse, self.slopes = lse, slopes
        self.rows, self.rules = rows, rules
        self.kv_heads, self.size = cache.shape[3], cache.shape[4]
        self.group = q.shape[1] // self.kv_heads
        self.dtype = _product_dtype(q.dtype, cache.dtype, may_round=rules.may_round)
        self.strides = (
            *q.stride()[:2], out.stride(0), rows[0].stride(0), *cache.stride()[:4],
            *((0, 0, 0) if scales is None else scales.stride()[:3]),
        )  # fmt: skip
        reach, self.seen = rules.reach
        self.numbers = (*_score_scales(rules), rules.v_scale, self.seen)
        self.own: dict[str, Any] = {
            "SIZE": self.size,
            "WIDE": max(16, triton.next_power_of_2(self.size)),
            "REACH": reach,
            "HAS_SINKS": sinks is not None,
            "HAS_LSE": lse is not None,
            "LOG2_E": LOG2_E,
        }
        self.shared: dict[str, Any] = self.own | {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "BLOCK_TOKENS": cache.shape[2],
            "HAS_CAP": rules.soft_cap is not None,
            "HAS_SLOPES": slopes is not None,
            "BITS": 0 if scales is None else 10 * bits[0] + bits[1],
            "DTYPE": DTYPES[self.dtype],
        }

    def prefill(self, max_seq_tokens: int) -> None:
        """Attend the rows of several tokens. Mutates: out"""
        (tokens, heads), rows = self.q.shape[:2], self.rows[2].shape[0]
        wide = self.own["WIDE"]
        tile = prefill_tile(self.dtype, self.cache.dtype, wide, self.group, self.q.device)
        visible = max_seq_tokens
        if self.seen:
            sides = 1 if self.rules.is_causal else 2
            visible = min(visible, sides * self.seen + tile.lines + SPAN)
        spans = max(1, triton.cdiv(visible, SPAN))
        programs = (tokens * self.group // tile.lines + rows) * self.kv_heads
        how = spans_of(programs, spans, 4 * tokens * heads * spans * self.size)
        if how == "next":
            tile = adding_tile(tile, wide, self.group)
        num_kept = {"one": 0, "next": 1, "each": spans}[how]
        sums = self.q.new_empty((tokens * heads * num_kept, self.size), dtype=torch.float32)
        levels = self.q.new_empty((tokens * heads * num_kept, 2), dtype=torch.float32)
        queries = tile.lines // self.group
        programs = (tokens // queries + rows) * self.kv_heads
        cut: dict[str, Any] = {"QUERIES": queries, "LANES": tile.lines, "SPAN": SPAN,
                               "IS_CAUSAL": self.rules.is_causal}  # fmt: skip
        for span in range(spans if how == "next" else 1):
            kernels.prefill[(programs, max(1, num_kept))](
                self.q, self.out, self.lse, sums, levels, self.cache, self.scales, self.sinks,
                self.slopes, *self.rows, rows, num_kept, span, *self.strides, *self.numbers,
                **self.shared, **cut, KEYS=tile.keys, SPANS=how,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip
        if how == "each":
            columns = min(128, wide)
            kernels.add_spans[(programs, triton.cdiv(self.size, columns))](
                self.out, self.lse, sums, levels, self.sinks, *self.rows[1:], rows, num_kept,
                self.out.stride(0),
                *self.numbers[2:], **{name: self.shared[name] for name in ADDED}, **cut,
                COLUMNS=columns, num_warps=max(4, tile.lines * columns // 2048),
            )  # fmt: skip

    def decode(self, max_seq_tokens: int) -> None:
        """Attend the rows of one token. Mutates: out"""
        tile = decode_tile(self.dtype, self.own["WIDE"], self.group, self.q.device)
        rows, heads = self.rows[2].shape[0], self.q.shape[1]
        splits = most_splits(self.kv_heads)
        visible = min(max_seq_tokens, self.seen or max_seq_tokens)
        num_splits = min(splits, max(1, triton.cdiv(visible, LEAST_SPLIT)))
        pairs = rows * self.kv_heads
        spread = min(num_splits, max(1, DECODE_PROGRAMS // pairs))
        kept_parts = rows * heads * num_splits if num_splits > 1 else 0
        sums = self.q.new_empty((kept_parts, self.size), dtype=torch.float32)
        levels = self.q.new_empty((kept_parts, 2), dtype=torch.float32)
        cut: dict[str, Any] = {"KEYS": tile.keys, "LEAST": LEAST_SPLIT, "SPLITS": splits}
        kernels.decode[(pairs, spread)](
            self.q, self.out, self.lse, sums, levels, self.cache, self.scales, self.sinks,
            self.slopes, *self.rows, num_splits, *self.strides, *self.numbers, **self.shared, **cut,
            LANES=tile.lines, num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        if num_splits > 1:
            kernels.join[(rows * heads,)](
                self.out, self.lse, sums, levels, self.sinks, *self.rows[1:], num_splits,
                self.out.stride(0),
                *self.numbers[2:], **self.own, **cut, HEADS=heads,
                num_warps=max(1, splits * self.own["WIDE"] // 1024),
            )  # fmt: skip


def spans_of(programs: int, spans: int, sums_bytes: int) -> str:
    """Return who walks a prefill's spans (see the kernel). No number depends on it."""
    if spans == 1:
        return "one"
    return "each" if programs < PREFILL_PROGRAMS and sums_bytes <= SPANS_BYTES else "next"


def most_splits(kv_heads: int) -> int:
    """Return the maximum number of splits of a row's keys: enough that one long row fills a device.
    It depends only on the model, so that a row is cut the same way in any batch."""
    return min(64, max(8, triton.next_power_of_2(128 // kv_heads or 1)))


def _score_scales(rules: LayerRules) -> tuple[float, float]:
    """Return the factor of products, and the cap: scores are powers of 2 at the end."""
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
