"""StarCoder 1 and SantaCoder (GPT-BigCode): GPT-2 with one key and value head for all query heads,
and matrices stored as [out, in].

Source: Li et al., StarCoder, 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.linear import GROUPS
from dovetail_plugins.models.gpt2 import GPT2LMHeadModel


class GPTBigCodeForCausalLM(GPT2LMHeadModel):
    """GPT-BigCode with its tied head."""

    info = Info(
        summary="StarCoder 1 and SantaCoder (GPT-BigCode)",
        source="https://arxiv.org/abs/2305.06161",
    )

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        self._is_by_head = not context.model.hf_config["multi_query"]

    def weight_map(self) -> WeightMap:
        """Return the names: with as many key as query heads, q, k and v are interleaved by head."""
        fused = {"c_attn": ("c_attn", GROUPS)} if self._is_by_head else {}
        return replace(super().weight_map(), transposed=(), fused=fused)
