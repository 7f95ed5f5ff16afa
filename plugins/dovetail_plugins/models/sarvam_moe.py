"""Sarvam's mixtures: GLM-4.5's by other names of weights, with heads that are rotated whole.

Source: Sarvam AI, Sarvam-30B, 2026; the names are its checkpoint's.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models.glm4_moe import Glm4MoeForCausalLM

RENAMES = (
    (".attention.", ".self_attn."),
    (".query_key_value.", ".qkv_proj."),
    (".dense.", ".o_proj."),
    (".query_layernorm.", ".q_norm."),
    (".key_layernorm.", ".k_norm."),
    (".gate.expert_bias", ".e_score_correction_bias"),
)


class SarvamMoEForCausalLM(Glm4MoeForCausalLM):
    """Sarvam-30B with a head."""

    info = Info(
        summary="Sarvam (mixture of experts)", source="https://huggingface.co/sarvamai/sarvam-30b"
    )

    def weight_map(self) -> WeightMap:
        """Return the names: one matrix has queries, then keys, then values."""
        usual = super().weight_map()
        tables = ("model.word_embeddings.", "model.embed_tokens.")
        return replace(
            usual,
            prefixes=(tables, *usual.prefixes),
            renames=(*RENAMES, *usual.renames),
        )
