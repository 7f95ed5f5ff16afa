"""Picked pools: which pools of B consecutive tokens the queries of a step attend to, as calls of
attention over picked tokens.

A pool's key is made of what its tokens have cached; an indexer's best pools are picked, and the
tokens after a query's last whole pool always are. Queries with as many such tokens are one call.
What is attended to, and how keys are made, is up to the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from dovetail.interfaces.attention import BatchLayout, IndexCall, IndexSpec
from dovetail.layers.attention.latent_rows import read_latents
from dovetail.layers.context import ForwardContext
from dovetail_plugins.layers.attention.token_rows import alone_rows, tokens_of

SCORED = 16
"""Pools' keys in a block of those that a step makes."""
Pooled = Callable[[torch.Tensor], torch.Tensor]
"""Makes the keys of whole pools of what a row's tokens have cached: [S, C] -> [S // B, D]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsConfig:
    """The sizes of an indexer: H and D, B, and how many pools a query picks. `query_rank`: the
    numbers of a query's latent (0: queries are made of the layer's input)."""

    num_heads: int
    head_size: int
    pool_size: int
    num_pools: int
    query_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedCall:
    """Tokens of a step with as many picks: their numbers, layout and picks.
    Shapes: tokens [T], picks [T, K]"""

    tokens: torch.Tensor
    prepared: object
    picks: torch.Tensor


class PoolPicker:
    """Picks the pools of one layer's queries. From `min_tokens` on a row has more whole pools than
    a query picks."""

    def __init__(self, pools: PoolsConfig) -> None:
        self.pools = pools
        self.spec = IndexSpec(
            num_heads=pools.num_heads, head_size=pools.head_size, num_picked=pools.num_pools
        )
        self.min_tokens = (pools.num_pools + 1) * pools.pool_size

    def calls(
        self,
        context: ForwardContext,
        layout: BatchLayout,
        cache: torch.Tensor,
        pooled: Pooled,
        index_q: torch.Tensor,
        weights: torch.Tensor,
    ) -> list[PickedCall]:
        """Return the step's tokens by how many follow their last whole pool. The `cache` has what
        `pooled` makes keys of, also of this step's tokens.

        Shapes: cache [N, P, C], index_q [T, H D], weights [T, H] float32
        """
        size = self.pools.pool_size
        rows, counts = tokens_of(layout)
        own = [token for token, count in enumerate(counts) if count >= self.min_tokens]
        keys = {}
        for row in sorted({rows[token] for token in own}):
            states = read_latents(cache, layout, row, layout.seq_lens_host[row])
            keys[row] = pooled(states.to(index_q.dtype))
        tokens = torch.tensor(own, device=index_q.device)
        lengths = [counts[token] // size for token in own]
        alone = alone_rows(layout, tokens, [rows[token] for token in own], lengths)
        numbers, alone = _over_keys(keys, [rows[token] for token in own], alone)
        call = IndexCall(
            spec=self.spec,
            q=index_q[tokens].unflatten(-1, (self.spec.num_heads, -1)),
            weights=weights[tokens],
            keys=numbers,
            prepared=context.backend.prepare(alone),
        )
        pools = torch.full((len(rows), self.spec.num_picked), -1, device=tokens.device)
        pools[tokens] = context.backend.pick(call).to(pools.dtype)
        picks = _expanded(pools, torch.tensor(counts, device=pools.device), size)
        return _by_rest(context, layout, rows, counts, picks, self.pools)


def _by_rest(
    context: ForwardContext,
    layout: BatchLayout,
    rows: list[int],
    counts: list[int],
    picks: torch.Tensor,
    pools: PoolsConfig,
) -> list[PickedCall]:
    """Return a step's tokens by how many follow their last whole pool; `rows` and `counts` as
    `tokens_of` returns them. Shapes: picks [T, most picks]"""
    rests = [count % pools.pool_size for count in counts]
    found = []
    for rest in sorted(set(rests)):
        own = [token for token, other in enumerate(rests) if other == rest]
        tokens = torch.tensor(own, device=picks.device)
        alone = alone_rows(layout, tokens, [rows[i] for i in own], [counts[i] for i in own])
        width = pools.num_pools * pools.pool_size + rest
        found.append(
            PickedCall(
                tokens=tokens,
                prepared=context.backend.prepare(alone),
                picks=picks[tokens, :width].contiguous(),
            )
        )
    return found


def _over_keys(
    keys: dict[int, torch.Tensor], rows: list[int], layout: BatchLayout
) -> tuple[torch.Tensor, BatchLayout]:
    """Return the keys of rows' pools in blocks of SCORED, and the layout of tokens of these `rows`
    over them. Shapes: keys [pools, D] each -> [N, SCORED, D]"""
    parts: list[torch.Tensor] = []
    first: dict[int, int] = {}
    num_blocks = 0
    for row, own in keys.items():
        first[row] = num_blocks
        parts.append(F.pad(own, (0, 0, 0, -len(own) % SCORED)))
        num_blocks += len(parts[-1]) // SCORED
    starts = torch.tensor([first[row] for row in rows], device=layout.slots.device)
    widest = -(-layout.max_seq_tokens // SCORED)
    table = starts.unsqueeze(1) + torch.arange(widest, device=starts.device)
    table = table.clamp_(max=num_blocks - 1).int()
    cache = torch.cat(parts).unflatten(0, (-1, SCORED))
    return cache, replace(layout, block_table=table, block_tokens=SCORED)


def _expanded(pools: torch.Tensor, counts: torch.Tensor, size: int) -> torch.Tensor:
    """Return the tokens of picked pools, and those after the last whole pool; of a token that picks
    none all that it sees. Shapes: pools [T, P], counts [T] -> [T, P B + B - 1] int32"""
    at = torch.arange(size, device=pools.device)
    picked = (pools.unsqueeze(-1) * size + at).flatten(1)
    wholes, seen = counts.unsqueeze(1) // size * size, counts.unsqueeze(1)
    rest = wholes + at[:-1]
    some = torch.cat([picked, torch.where(rest < seen, rest, -1)], dim=1)
    every = torch.arange(some.shape[1], device=pools.device).expand_as(some)
    every = torch.where(every < seen, every, -1)
    return torch.where(pools[:, :1] < 0, every, some).int()
