"""ColBERT: BERT and one matrix that makes a small vector of every token, for late interaction.

Source: Khattab and Zaharia 2020.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from dovetail.config.checkpoint.late_interaction import vector_size
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.linear import ReplicatedLinear
from dovetail_plugins.models.bert import BertModel


class ColBert(BertModel):
    """BERT whose hidden states are vectors of tokens."""

    info = Info(summary="ColBERT", source="https://arxiv.org/abs/2004.12832")

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the matrix that makes vectors."""
        model = context.model
        size = vector_size(model.hf_config, Path(model.path))
        return ReplicatedLinear(context, "head", model.hidden_size, size)

    def weight_map(self) -> WeightMap:
        """Return BERT's names; the matrix is called "linear"."""
        plain = super().weight_map()
        return replace(plain, prefixes=(("linear.", "head."), *plain.prefixes))

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return vectors of tokens, of any length. Shapes: token_ids, positions [T] -> [T, O]"""
        assert self.head is not None, "its head is what makes vectors"
        vectors: torch.Tensor = self.head(super().forward(token_ids, positions))
        return vectors
