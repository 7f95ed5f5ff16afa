"""InternLM2 and 2.5: Llama by other names, with q, k and v in one matrix group by group.

Source: Cai et al. 2024; the names are from its checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import BARE, DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.decoder_head import class_score
from dovetail.layers.linear import GROUPS
from dovetail.layers.stages import Stage

PREFIXES = (
    ("output.", "lm_head."),
    ("v_head.", "score."),
    ("tok_embeddings.", "model.embed_tokens."),
    *BARE,
)
RENAMES = (
    ("model.tok_embeddings.", "model.embed_tokens."),
    (".attention_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".attention.", ".self_attn."),
    (".feed_forward.", ".mlp."),
    (".self_attn.wo.", ".self_attn.o_proj."),
    (".mlp.w2.", ".mlp.down_proj."),
)
FUSED = {
    "wqkv": ("qkv_proj", GROUPS),
    "w1": ("gate_up_proj", "gate"),
    "w3": ("gate_up_proj", "up"),
}


class InternLM2ForCausalLM(DecoderForCausalLM):
    """InternLM2 with a head: it generates, classifies or scores (rewards)."""

    info = Info(summary="InternLM2 and InternLM2.5", source="https://arxiv.org/abs/2403.17297")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config, with biases of attention if `bias` says so."""
        has_bias = bool(model.hf_config["bias"])
        return usual_config(model, has_qkv_bias=has_bias, has_out_bias=has_bias)

    def build_score(self, context: BuildContext, stage: Stage) -> nn.Module:
        """Return one matrix, for rewards too."""
        return class_score(context, stage, two_layers=())

    def weight_map(self) -> WeightMap:
        """Return the names."""
        usual = super().weight_map()
        fused = {**usual.fused, **FUSED}
        return replace(usual, prefixes=PREFIXES, renames=RENAMES, fused=fused)
