"""MeanPooler: the mean of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

if TYPE_CHECKING:
    import torch


class MeanPooler(Pooler):
    """the mean of all tokens."""

    info = Info(summary="the mean of all tokens", source="https://arxiv.org/abs/1908.10084")

    capabilities = frozenset({"in_pieces"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean of the states. Shapes: hidden [n, E] -> [E]"""
        return hidden.float().mean(dim=0)
