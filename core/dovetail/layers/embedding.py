"""Token and position embeddings. The token table is divided over ranks by vocabulary.

Token ids are trusted to lie inside the vocabulary: requests are checked before they are queued.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.placement import Part, Placement, WeightHolder, mark_axes, place_parts
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import Group, tensor_group


def vocab_part(vocab_size: int, group: Group) -> Part:
    """Return this rank's rows of a vocabulary table; the last rank's share may be padded."""
    local = -(-vocab_size // group.size)
    return Part(name="", full=vocab_size, local=local, start=group.rank * local)


class VocabParallelEmbedding(WeightHolder):
    """Rows of the token table of this rank. Shapes: weight [V of this rank, E]"""

    def __init__(self, context: BuildContext, vocab_size: int, size: int) -> None:
        super().__init__()
        self.group = tensor_group(context.rank)
        self.part = vocab_part(vocab_size, self.group)
        empty = torch.empty(
            self.part.local, size, dtype=dtype_of(context.model.dtype), device=context.device
        )
        self.weight = mark_axes(nn.Parameter(empty, requires_grad=False), output=0, input=None)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens' vectors, whole on every rank. Shapes: token_ids [T] -> [T, E]"""
        if self.group.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self.part.start
        is_foreign = (local < 0) | (local >= self.part.local)
        found = F.embedding(local.masked_fill(is_foreign, 0), self.weight)
        return all_reduce(found.masked_fill(is_foreign.unsqueeze(-1), 0), self.group)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where the checkpoint tensor goes (see WeightHolder)."""
        return (
            place_parts(leaf, self.weight, (self.part,), part, None) if leaf == "weight" else None
        )

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece of the table."""
        return {""}


class PositionEmbedding(nn.Module):
    """A learned vector per position, on every rank whole. `offset` rows come before position 0."""

    def __init__(
        self, context: BuildContext, num_positions: int, size: int, *, offset: int = 0
    ) -> None:
        super().__init__()
        self.offset = offset
        empty = torch.empty(
            num_positions + offset, size, dtype=dtype_of(context.model.dtype), device=context.device
        )
        self.weight = nn.Parameter(empty, requires_grad=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: positions [T] -> [T, E]"""
        return F.embedding(positions + self.offset, self.weight)
