"""Splits a step's rows for latent attention: long rows, which are expanded, and all others.

Also reads and writes latents in a paged cache [N, P, L + R], and computes attention with keys and
values made from latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.layers.context import ForwardContext

KEYS = 512
"""Latents that are expanded to keys and values at a time."""
MAX_SCORES = 1 << 22
"""Maximum number of scores at a time, over all heads."""
HIDDEN = -1e30
"""The score of unpicked positions: lower than any other, but finite, since a chunk may have no
picked keys. Sums with such scores later fade to zero."""

Expand = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Latents [S, L + R] become keys [H, S, D] and values [H, S, V]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow:
    """A row's number, its tokens in the step, its first position there, and its end position."""

    row: int
    tokens: slice
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentRows:
    """The long rows of a step, and the tokens and layout of all others (None: there are none).

    Shapes: tokens [T of the others] int64
    """

    layout: BatchLayout
    long: Sequence[LongRow]
    tokens: torch.Tensor | None
    prepared: Any


def long_rows(
    context: ForwardContext,
    name: str,
    min_tokens: int,
    max_end: Callable[[int], int] | None = None,
) -> LatentRows | None:
    """Return the rows with at least `min_tokens` tokens in the step; None if there are none.

    With `max_end`, only rows whose end is at most `max_end(number of tokens)`. Computed once per KV
    group and arguments, for all layers. Mutates: context.once
    """
    prepared = context.prepared[name]
    layout = context.backend.layout_of(prepared)
    if layout.max_query_tokens < min_tokens:
        return None
    key = (LatentRows, id(prepared), min_tokens, max_end is None)
    if key not in context.once:
        context.once[key] = _apart(context, layout, min_tokens, max_end)
    found: LatentRows | None = context.once[key]
    return found


def _apart(
    context: ForwardContext,
    layout: BatchLayout,
    min_tokens: int,
    max_end: Callable[[int], int] | None,
) -> LatentRows | None:
    counts = [end - start for start, end in pairwise(layout.query_start_host)]
    ends = layout.seq_lens_host
    starts = layout.query_start_host
    long = [
        LongRow(
            row=row,
            tokens=slice(starts[row], starts[row + 1]),
            start=ends[row] - count,
            end=ends[row],
        )
        for row, count in enumerate(counts)
        if count >= min_tokens and (max_end is None or ends[row] <= max_end(count))
    ]
    if not long:
        return None
    apart = {row.row for row in long}
    others = [row for row, count in enumerate(counts) if count and row not in apart]
    if not others:
        return LatentRows(layout=layout, long=long, tokens=None, prepared=None)
    tokens, rest = _only(layout, others, counts)
    return LatentRows(
        layout=layout, long=long, tokens=tokens, prepared=context.backend.prepare(rest)
    )


def _only(
    layout: BatchLayout, rows: Sequence[int], counts: Sequence[int]
) -> tuple[torch.Tensor, BatchLayout]:
    """Return the tokens of some rows, and a layout of only these rows."""
    device, starts = layout.slots.device, [0]
    for row in rows:
        starts.append(starts[-1] + counts[row])
    numbers = [layout.query_start_host[row] + i for row in rows for i in range(counts[row])]
    tokens = torch.tensor(numbers, device=device)
    chosen = torch.tensor(rows, device=device)
    lengths = [layout.seq_lens_host[row] for row in rows]
    return tokens, replace(
        layout,
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        seq_lens=layout.seq_lens[chosen],
        block_table=layout.block_table[chosen],
        slots=layout.slots[tokens],
        query_start_host=starts,
        seq_lens_host=lengths,
        max_query_tokens=max(counts[row] for row in rows),
        max_seq_tokens=max(lengths),
    )


def write_latents(latent: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Store latents. Shapes: latent [T, L + R], cache [N, P, L + R], slots [T]. Mutates: cache"""
    size = cache.shape[1]
    cache.index_put_((slots // size, slots % size), latent.to(cache.dtype))


def read_latents(
    cache: torch.Tensor, layout: BatchLayout, row: int, end: int, start: int = 0
) -> torch.Tensor:
    """Return the latents of a row's positions from `start` to `end`. Shapes: cache [N, P, L + R] ->
    [end - start, L + R]"""
    positions = torch.arange(start, end, device=cache.device)
    blocks = layout.block_table[row].long()[positions // cache.shape[1]]
    return cache[blocks, positions % cache.shape[1]]


def attend_expanded(
    q: torch.Tensor,
    latents: torch.Tensor,
    start: int,
    scale: float,
    expand: Expand,
    size: int,
    picks: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return causal attention of queries from position `start` on, with keys and values made from
    latents chunk by chunk. With `picks`, each query attends only to its picked positions.

    Shapes: q [T, H, D], latents [start + T, L + R], picks [T, K], -1 for none, sinks [H] ->
    [T, H, size]"""
    unpicked = None if picks is None else _unpicked(picks, len(latents))
    queries = q.transpose(0, 1) * scale
    heads, count = queries.shape[:2]
    total = q.new_zeros(heads, count, 1, dtype=torch.float32)
    top = torch.full_like(total, -torch.inf)
    if sinks is not None:
        total, top = total + 1, top.zero_() + sinks.view(-1, 1, 1)
    out = q.new_zeros(heads, count, size, dtype=torch.float32)
    step = max(1, MAX_SCORES // (heads * KEYS))
    for first in range(0, len(latents), KEYS):
        last = min(first + KEYS, len(latents))
        keys, values = expand(latents[first:last])
        for begin in range(max(0, first - start), count, step):
            part = slice(begin, min(begin + step, count))
            scores = torch.bmm(queries[:, part], keys.transpose(1, 2)).float()
            if last - 1 > start + begin:
                own = torch.arange(start + begin, start + part.stop, device=q.device)
                hidden = torch.arange(first, last, device=q.device) > own.unsqueeze(1)
                scores.masked_fill_(hidden, -torch.inf)
            if unpicked is not None:
                scores.masked_fill_(unpicked[part, first:last], HIDDEN)
            peak = torch.maximum(top[:, part], scores.amax(dim=-1, keepdim=True))
            weights = scores.sub_(peak).exp_()
            old = (top[:, part] - peak).exp_()
            total[:, part] = total[:, part] * old + weights.sum(dim=-1, keepdim=True)
            output = torch.bmm(weights.to(values.dtype), values)
            out[:, part] = out[:, part] * old + output
            top[:, part] = peak
    return (out / total).to(q.dtype).transpose(0, 1)


def _unpicked(picks: torch.Tensor, count: int) -> torch.Tensor:
    """Return which of the first positions are not picked. Shapes: picks [T, K] -> [T, count]"""
    at = torch.where(picks < 0, count, picks).long()
    unpicked = torch.ones(len(picks), count + 1, dtype=torch.bool, device=picks.device)
    return unpicked.scatter_(1, at, value=False)[:, :count]
