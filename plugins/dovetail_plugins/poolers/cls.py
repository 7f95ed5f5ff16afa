"""ClsPooler: the first token, which BERT-like encoders are trained to sum a text up in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

if TYPE_CHECKING:
    import torch


class ClsPooler(Pooler):
    """the first token, which BERT-like encoders are trained to sum a text up in."""

    info = Info(summary="the first token", source="https://arxiv.org/abs/1810.04805")

    capabilities = frozenset({"first_token", "in_pieces"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the first token's state. Shapes: hidden [n, E] -> [E]"""
        return hidden[0]
