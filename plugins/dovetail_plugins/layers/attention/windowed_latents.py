"""Latent attention within a sliding window, and one cache for the latents of several layers.

A query attends to its own latent and to those of the w - 1 tokens before it. As long as a step's
rows have at most w tokens, attention is dense. Beyond that, rows of few tokens attend to the last w
latents as if an indexer had picked them (absorbed); rows of many tokens are cut into pieces of w
queries, and the latents that a piece sees are expanded once.

Layers of several sizes can share blocks of one size if a block has the latents of several layers:
of few large or of many small ones (`LatentPack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import EntryLayer, EntryPart, LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent import LatentAttention, LatentConfig
from dovetail.layers.attention.latent_rows import LatentRows
from dovetail.layers.context import INDEX_KEYS, LATENTS, forward_context
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_plugins.layers.attention.compressor import Entries
from dovetail_plugins.layers.attention.indexed import IndexedAttention
from dovetail_plugins.layers.attention.token_rows import tokens_of

WINDOWS = "windows"


class PackedLatents(LatentAttention):
    """The attention of one layer, whose latents are in the cache of a LatentPack."""

    part_name = ""

    def join(self, pack: str) -> tuple[EntryPart, ...]:
        """Use the cache of this name; return what it holds of this layer. Mutates: self"""
        self.part_name, self.name = self.name, pack
        return tuple(
            EntryPart(name=f"{self.part_name}.{part}", size=size, tokens=1)
            for part, size in self.part_sizes().items()
        )

    def part_sizes(self) -> dict[str, int]:
        """Return how many numbers are cached for a token, by what they are."""
        return {LATENTS: self.spec.size}

    def kept(self, run: RunSpec) -> LatentLayer | None:
        """Return None: the pack's cache has the latents."""
        return None

    def _cache(self) -> torch.Tensor:
        """Return the latents of all rows. Shapes: [N, P, L + R]"""
        return self._part(LATENTS)

    def _part(self, name: str) -> torch.Tensor:
        cache = forward_context().caches[self.name]
        assert isinstance(cache, dict)
        return cache[f"{self.part_name}.{name}"]


class PackedIndexed(PackedLatents, IndexedAttention):
    """The same over the tokens that an indexer picks, whose keys are in the pack too."""

    def part_sizes(self) -> dict[str, int]:
        """Return how many numbers are cached for a token, by what they are."""
        return {**super().part_sizes(), INDEX_KEYS: self.index_size}


class PackedWindow(PackedLatents):
    """The same within a window of `window` tokens, which counts the query's own."""

    def __init__(self, context: BuildContext, name: str, config: LatentConfig, window: int) -> None:
        super().__init__(context, name, config)
        self.window = window

    def _attend(self, q: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Shapes: q [T, H (N + R)], latent [T, L + R] -> [T, H V]"""
        refuse_recording("whether a window hides latents depends on how long rows are")
        context = forward_context()
        layout = context.backend.layout_of(context.prepared[self.name])
        if layout.max_seq_tokens <= self.window:
            return self._attended(q, latent)
        place = (WINDOWS, context.first_token, self.window)
        if place not in context.once:
            context.once[place] = last_positions(layout, self.window)
        return self._attended(q, latent, context.once[place])

    def _attend_long(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        rows: LatentRows,
        out: torch.Tensor,
        picks: torch.Tensor | None,
    ) -> None:
        """Compute the attention of long rows, a window of queries at a time. Mutates: out"""
        if picks is None:
            super()._attend_long(q, cache, rows, out, picks)
            return
        for row in rows.long:
            for start in range(row.start, row.end, self.window):
                end, shift = min(start + self.window, row.end), row.tokens.start - row.start
                tokens = slice(start + shift, end + shift)
                piece = replace(row, tokens=tokens, start=start, end=end)
                first = max(0, start - self.window + 1)
                self._attend_piece(q, cache, rows.layout, piece, first, out, picks)


class LatentPack(Entries):
    """The cache of several layers' latents, within a window if there is one."""

    def __init__(
        self, name: str, layers: Sequence[PackedLatents], window_tokens: int | None
    ) -> None:
        super().__init__(name, tuple(part for layer in layers for part in layer.join(name)))
        self.window_tokens = window_tokens

    def kept(self, run: RunSpec) -> EntryLayer:
        """Return the cached latents."""
        return EntryLayer(
            name=self.name,
            parts=self.parts,
            dtype=run.kv_dtype,
            window_tokens=self.window_tokens,
        )


def last_positions(layout: BatchLayout, window: int) -> torch.Tensor:
    """Return the positions that each token of a step sees within a window, in ascending order, then
    -1. Shapes: -> [T, min(window, longest row)] int32"""
    _, counts = tokens_of(layout)
    device = layout.slots.device
    seen = torch.tensor(counts, dtype=torch.int32, device=device).unsqueeze(1)
    width = min(window, layout.max_seq_tokens)
    at = (seen - window).clamp_(min=0) + torch.arange(width, dtype=torch.int32, device=device)
    return torch.where(at < seen, at, -1)
