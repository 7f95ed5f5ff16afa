"""MaxPooler: the largest number of all tokens, dimension by dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

if TYPE_CHECKING:
    import torch


class MaxPooler(Pooler):
    """the largest number of all tokens, dimension by dimension."""

    info = Info(
        summary="the largest number of each dimension", source="https://arxiv.org/abs/1908.10084"
    )

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the largest numbers. Shapes: hidden [n, E] -> [E]"""
        return hidden.amax(dim=0)
