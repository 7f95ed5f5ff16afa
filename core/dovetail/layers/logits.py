"""LogitsHead: hidden states to logits over the whole vocabulary, without sampling.

Its table is the embedding's own when tied, and otherwise a linear layer sharded by vocabulary.
"""

from __future__ import annotations

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.adapters.tables import NEVER, TableSlots
from dovetail.layers.embedding import VocabParallelEmbedding, vocab_part
from dovetail.layers.linear import Linear
from dovetail.layers.linear.placement import Placement, WeightHolder
from dovetail.parallel.collectives import all_gather
from dovetail.parallel.groups import tensor_group


class LogitsHead(WeightHolder):
    """`tied` shares the embedding's memory; `soft_cap` c bends logits l to c * tanh(l / c)."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        vocab_size: int,
        size: int,
        *,
        bias: bool = False,
        tied: VocabParallelEmbedding | None = None,
        soft_cap: float | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.group = tensor_group(context.rank)
        self.vocab_size = vocab_size
        self.size = size
        self.soft_cap = soft_cap
        self.scale = scale
        self.tied = tied
        self.adapters: TableSlots | None = None
        part = vocab_part(vocab_size, self.group)
        self.linear = None if tied else Linear(context, name, size, (part,), bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits, whole on every rank, with more columns if adapters add tokens (see
        TableSlots). Shapes: hidden [S, E] -> [S, V or more]"""
        if self.tied is not None:
            local = self.tied.logits(hidden)
        else:
            assert self.linear is not None
            local = self.linear(hidden)
        logits = all_gather(local, self.group)[:, : self.vocab_size]
        if self.adapters is not None:
            logits = self.adapters.logits(hidden, logits)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            bent = self.soft_cap * torch.tanh(logits / self.soft_cap)
            is_wide = logits.shape[1] > self.vocab_size
            logits = torch.where(logits == NEVER, logits, bent) if is_wide else bent
        return logits

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where the checkpoint tensor goes; the linear layer uses the head's own names."""
        if self.linear is None:
            return None
        placements = self.linear.place(leaf.removeprefix("linear."), part)
        if placements is None:
            return None
        return [
            Placement(name=f"linear.{p.name}", piece=p.piece, target=p.target, cuts=p.cuts)
            for p in placements
        ]

    def pieces(self, leaf: str) -> set[str]:
        """Return an empty set: the linear layer holds the head's parameters."""
        return set()
