"""Attention with biases by distance that each query mixes for itself.

For a query t and a key s, d = t - s tokens back, with r_t the query's small vector of R numbers:

    score = scale q_t . k_s + r_t . P[:, d]              # the bias is 0 from `extent` tokens on

P [R, extent] is learned, one for all heads. A query may have one more score, its sink, which takes
weight and adds nothing. Queries far into a row may be multiplied, bias included, by

    tau = 1 + alpha log(max(1, (t + 1) / floor))

No backend adds biases of that kind, so the keys and values of all heads are cached side by side as
one latent of a token, and torch attends to them.
Source: Thinking Machines Lab, Inkling, 2026, as transformers has it; Nakanishi, Scalable-Softmax Is
Superior for Attention, 2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec, BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent_rows import MAX_SCORES, write_latents
from dovetail.layers.context import forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.kept import CachingLayer
from dovetail.layers.opaque import CompilerBoundary
from dovetail_kernels.cpu.program import refuse_recording


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """The factor of queries far into a row: 1 up to `floor` tokens."""

    floor: int
    alpha: float

    def factors(self, positions: torch.Tensor) -> torch.Tensor:
        """Return tau. Shapes: positions [T] -> [T] float32"""
        share = (positions + 1).float() / self.floor
        return 1 + self.alpha * share.clamp(min=1).log()


class DistanceBank(nn.Module):
    """P, on every rank. Shapes: proj [R, extent]"""

    def __init__(self, context: BuildContext, size: int, extent: int) -> None:
        super().__init__()
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(size, extent, dtype=dtype, device=context.device)
        self.proj = nn.Parameter(empty, requires_grad=False)


def distance_biases(
    mixes: torch.Tensor, bank: torch.Tensor, distances: torch.Tensor
) -> torch.Tensor:
    """Return the biases of scores. Shapes: mixes [..., H, R], bank [R, extent], distances [..., S]
    -> [..., H, S] float32"""
    extent = bank.shape[1]
    by_distance = mixes.float() @ bank.float()
    at = distances.clamp(0, extent - 1).unsqueeze(-2).expand(*mixes.shape[:-1], -1)
    is_near = (distances >= 0) & (distances < extent)
    return by_distance.gather(-1, at).masked_fill(~is_near.unsqueeze(-2), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """B rows' T neighbouring queries each, with the S keys that some of them see.

    Shapes: tokens and at [B, T], the queries' numbers in the step and positions in their rows;
    blocks and places [B, S], where the keys are cached; distances and is_hidden [B, T, S]
    """

    tokens: torch.Tensor
    at: torch.Tensor
    blocks: torch.Tensor
    places: torch.Tensor
    distances: torch.Tensor
    is_hidden: torch.Tensor


def pieces_of(layout: BatchLayout, window: int | None, max_pairs: int) -> Iterator[Piece]:
    """Yield all queries of a step in pieces of at most `max_pairs` pairs of a query and a key, or
    of one query: rows of one token together, others by themselves. A window counts the query."""
    starts, lengths = layout.query_start_host, layout.seq_lens_host
    alone = [row for row in range(layout.num_rows) if starts[row + 1] - starts[row] == 1]
    alone.sort(key=lengths.__getitem__)
    while alone:
        longest = min(lengths[alone[-1]], window or lengths[alone[-1]])
        rows = alone[-max(1, max_pairs // longest) :]
        del alone[-len(rows) :]
        yield _piece(layout, window, rows, [starts[row] for row in rows], 1)
    for row, (start, end) in enumerate(pairwise(starts)):
        step = max(1, max_pairs // max(1, lengths[row]))
        for first in range(start, end if end - start > 1 else start, step):
            yield _piece(layout, window, [row], [first], min(step, end - first))


def _piece(
    layout: BatchLayout, window: int | None, rows: list[int], firsts: list[int], count: int
) -> Piece:
    """Return the piece of `count` queries of each row, which begin at these tokens of the step."""
    device, size = layout.block_table.device, layout.block_tokens
    starts, lengths = layout.query_start_host, layout.seq_lens_host
    ahead = [lengths[row] - starts[row + 1] for row in rows]
    before = [first + more for first, more in zip(firsts, ahead, strict=True)]
    lows = [0 if window is None else max(0, position - window + 1) for position in before]
    widest = max(p + count - low for p, low in zip(before, lows, strict=True))
    own = torch.arange(count, device=device)
    tokens = torch.tensor(firsts, device=device).unsqueeze(1) + own
    at = torch.tensor(before, device=device).unsqueeze(1) + own
    seen = torch.tensor(lows, device=device).unsqueeze(1) + torch.arange(widest, device=device)
    distances = at.unsqueeze(2) - seen.unsqueeze(1)
    is_hidden = distances < 0
    if window is not None:
        is_hidden |= distances >= window
    cached = seen.minimum(at[:, -1:])
    table = layout.block_table[torch.tensor(rows, device=device)]
    return Piece(
        tokens=tokens,
        at=at,
        blocks=table.gather(1, cached // size).long(),
        places=cached % size,
        distances=distances,
        is_hidden=is_hidden,
    )


class RelativeAttention(CachingLayer):
    """The attention of one layer, with its cache of keys and values."""

    def __init__(self, name: str, spec: AttentionSpec, log_scale: LogScale | None = None) -> None:
        super().__init__(name)
        self.spec, self.log_scale = spec, log_scale
        self.size = 2 * spec.num_kv_heads * spec.head_size
        self._opaque = CompilerBoundary(self._attend)

    def kept(self, run: RunSpec) -> LatentLayer:
        """Return the cached keys and values of this rank's heads."""
        return LatentLayer(
            name=self.name,
            size=self.size,
            dtype=run.kv_dtype,
            window_tokens=self.spec.window_tokens,
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mixes: torch.Tensor,
        bank: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values.

        Shapes: q [T, H*D], k and v [T, K*D], mixes [T, H*R], bank [R, extent], sinks [T, H] ->
        [T, H*D]
        """
        width = self.spec.num_heads * self.spec.head_size
        return self._opaque(q, k, v, mixes, bank, sinks, size=width)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mixes: torch.Tensor,
        bank: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        refuse_recording("how many keys torch reads depends on how long rows are")
        context, heads = forward_context(), self.spec.num_heads
        cache = context.caches[self.name]
        assert isinstance(cache, torch.Tensor)
        prepared, window = context.prepared[self.name], self.spec.window_tokens
        layout = context.backend.layout_of(prepared)
        write_latents(torch.cat([k, v], dim=-1), cache, layout.slots)
        key = (Piece, id(prepared), window, heads)
        if key not in context.once:
            context.once[key] = list(pieces_of(layout, window, MAX_SCORES // heads))
        queries, mixed = (x.unflatten(-1, (heads, -1)) for x in (q, mixes))
        out = torch.zeros_like(queries)
        for piece in context.once[key]:
            own = None if sinks is None else sinks[piece.tokens]
            both = cache[piece.blocks, piece.places].float()
            biases = distance_biases(mixed[piece.tokens], bank, piece.distances)
            out[piece.tokens] = self._attended(queries[piece.tokens], both, biases, own, piece)
        return out.flatten(1)

    def _attended(
        self,
        q: torch.Tensor,
        both: torch.Tensor,
        biases: torch.Tensor,
        sinks: torch.Tensor | None,
        piece: Piece,
    ) -> torch.Tensor:
        """Return the attended values of a piece. Shapes: q [B, T, H, D], both [B, S, 2 K D], biases
        [B, T, H, S], sinks [B, T, H] -> [B, T, H, D]"""
        spec = self.spec
        k, v = both.unflatten(-1, (2, spec.num_kv_heads, -1)).unbind(2)
        grouped = q.float().unflatten(2, (spec.num_kv_heads, -1))
        scores = torch.einsum("btkgd,bskd->btkgs", grouped, k).flatten(2, 3) * spec.scale + biases
        if self.log_scale is not None:
            scores = scores * self.log_scale.factors(piece.at)[..., None, None]
        scores = scores.masked_fill(piece.is_hidden.unsqueeze(2), -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.float().unsqueeze(-1)], dim=-1)
        weights = scores.softmax(dim=-1)[..., : k.shape[1]]
        weights = weights.unflatten(2, (spec.num_kv_heads, -1))
        return torch.einsum("btkgs,bskd->btkgd", weights, v).flatten(2, 3).to(q.dtype)
