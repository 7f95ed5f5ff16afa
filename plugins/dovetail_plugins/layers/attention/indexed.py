"""Sparse latent attention: a query attends to the latents that an indexer picks, and to no others.

As long as a step's rows have no more tokens than a query picks, all are picked, and attention is
dense. Beyond that, rows of few tokens attend to sums of picked latents (absorbed). Rows of many
tokens expand all latents once into keys and values and mask the unpicked ones, if that is less
work. A layer may also attend to the picks of the last layer with an indexer. Source: DeepSeek-AI,
DeepSeek-V3.2, 2025, arXiv 2512.02556; picks that layers share: GLM-5, 2026, arXiv 2602.15763.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from dovetail.interfaces.attention import IndexCall, IndexSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent import LatentAttention, LatentConfig
from dovetail.layers.attention.latent_rows import LatentRows, long_rows, write_latents
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.context import INDEX_KEYS, LATENTS, ForwardContext, forward_context
from dovetail_kernels.cpu.program import refuse_recording

PICKS = "picks"


class IndexedAttention(LatentAttention):
    """The attention of one layer. Without an indexer it takes the picks of the last layer that has
    one, which the same rank must compute."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: LatentConfig,
        index: IndexSpec,
        indexer: nn.Module | None,
    ) -> None:
        super().__init__(context, name, config)
        self.index = index
        self.indexer = indexer

    @property
    def index_size(self) -> int:
        """Return the numbers that a token's index key has, 0 without an indexer."""
        return 0 if self.indexer is None else self.index.head_size

    def kept(self, run: RunSpec) -> LatentLayer | None:
        """Return the cached latents, and the index keys if the layer has an indexer."""
        return LatentLayer(
            name=self.name, size=self.spec.size, dtype=run.kv_dtype, index_size=self.index_size
        )

    def picking(
        self, x: torch.Tensor, query_latent: torch.Tensor | None, rope: Rope
    ) -> tuple[torch.Tensor, ...]:
        """Return the indexer's output for the tokens (see `indexer.Indexer`); nothing, if another
        layer's is used."""
        if self.indexer is None:
            return ()
        output: tuple[torch.Tensor, ...] = self.indexer(x, query_latent, rope)
        return output

    def _attend(
        self,
        q: torch.Tensor,
        latent: torch.Tensor,
        index_q: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Shapes: q [T, H (N + R)], latent [T, L + R]; of the indexer index_q [T, H D], weights
        [T, H], keys [T, D] -> [T, H V]"""
        refuse_recording("whether an indexer picks depends on how long rows are")
        context = forward_context()
        prepared = context.prepared[self.name]
        layout = context.backend.layout_of(prepared)
        if keys is not None:
            write_latents(keys, self._index_keys(), layout.slots)
        if layout.max_seq_tokens <= self.index.num_picked:
            return self._attended(q, latent)
        # Halves of a step are separate; within one, later layers share a layer's picks.
        place = (PICKS, context.first_token)
        if index_q is not None and weights is not None:
            call = IndexCall(
                spec=self.index,
                q=index_q.unflatten(-1, (self.index.num_heads, -1)),
                weights=weights,
                keys=self._index_keys(),
                prepared=prepared,
            )
            context.once[place] = context.backend.pick(call)
        return self._attended(q, latent, context.once[place])

    def _rows(self, context: ForwardContext, picks: torch.Tensor | None) -> LatentRows | None:
        """Return the long rows of a step: of those that see more than a query picks only the ones
        in which keys and values of all latents are less work."""
        min_expanded = self.config.min_expanded
        if picks is None:
            return long_rows(context, self.name, min_expanded)
        return long_rows(context, self.name, min_expanded, self._max_expanded)

    def _max_expanded(self, num_tokens: int) -> int:
        """Return up to how many tokens of a row with this many new ones expanding pays off.

        Of S latents, expanded queries take T S (N + R + V) + S L (N + V) multiplications a head,
        those that pick K of them T K (2 L + R).
        """
        config, picked = self.config, self.index.num_picked
        plain, rope, value = config.plain_size, config.rope_size, config.value_size
        once = config.latent_size * (plain + value) / num_tokens
        fewest = picked * (2 * config.latent_size + rope)
        return max(picked, math.floor(fewest / (plain + rope + value + once)))

    def _index_keys(self) -> torch.Tensor:
        """Return the index keys of all rows. Shapes: [N, P, D]"""
        return self._part(INDEX_KEYS)

    def _cache(self) -> torch.Tensor:
        """Return the latents of all rows. Shapes: [N, P, L + R]"""
        return super()._cache() if self.indexer is None else self._part(LATENTS)

    def _part(self, name: str) -> torch.Tensor:
        cache = forward_context().caches[self.name]
        assert isinstance(cache, dict)
        return cache[name]
