"""LastPooler: the last token, which is the one that has seen all others of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

if TYPE_CHECKING:
    import torch


class LastPooler(Pooler):
    """the last token, which is the one that has seen all others of a decoder."""

    info = Info(summary="the last token")
    capabilities = frozenset({"last_token", "in_pieces"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the last token's state. Shapes: hidden [n, E] -> [E]"""
        return hidden[-1]
