"""XGLM: OPT with positions by sines, scaled token vectors, and GELU.

Source: Lin et al., Few-shot Learning with Multilingual Language Models, 2021 (arXiv 2112.10668).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.embedding import PositionEmbedding
from dovetail_plugins.models.opt import POSITION_OFFSET, OPTForCausalLM, OPTModel

NAMES = (
    ("model.layer_norm.", "model.final_layer_norm."),
    ("layer_norm.", "model.final_layer_norm."),
    *((name, f"model.{name}") for name in ("embed_tokens.", "layers.")),
)


class XGLMModel(OPTModel):
    """The decoder whose positions no checkpoint holds."""

    @property
    def embedding_scale(self) -> float:
        """Return the factor of the token vectors."""
        return math.sqrt(float(self.config["d_model"])) if self.config["scale_embedding"] else 1.0

    def build_positions(self, context: BuildContext, size: int) -> PositionEmbedding:
        """Return sines, then cosines of each position."""
        num_positions = int(self.config["max_position_embeddings"])
        table = sines(num_positions + POSITION_OFFSET, size, self.config.get("pad_token_id"))
        return PositionEmbedding(context, num_positions, size, offset=POSITION_OFFSET, table=table)


def sines(count: int, size: int, padding: int | None) -> torch.Tensor:
    """Return the vectors of `count` positions, of zeros for that of padding. Shapes: [count, size]

    Source: Vaswani et al., Attention Is All You Need, 2017, as tensor2tensor computes them.
    """
    half = size // 2
    frequencies = torch.exp(torch.arange(half).float() * (-math.log(10000) / (half - 1)))
    angles = torch.outer(torch.arange(count).float(), frequencies)
    table = torch.cat([angles.sin(), angles.cos(), torch.zeros(count, size % 2)], dim=1)
    if padding is not None:
        table[padding] = 0
    return table


class XGLMForCausalLM(OPTForCausalLM):
    """XGLM with its tied head."""

    info = Info(summary="XGLM", source="https://arxiv.org/abs/2112.10668")
    model_class = XGLMModel

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), prefixes=NAMES, ignored=("embed_positions.weights",))
