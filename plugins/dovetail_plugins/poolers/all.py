"""AllPooler: every token separately, for late interaction and token rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

if TYPE_CHECKING:
    import torch


class AllPooler(Pooler):
    """every token separately, for late interaction and token rewards."""

    info = Info(summary="every token for itself", source="https://arxiv.org/abs/2004.12832")
    capabilities = frozenset({"per_token"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the states unchanged. Shapes: hidden [n, E] -> [n, E]"""
        return hidden
