"""MiniMax M2: sigmoid-routed experts in all layers, norms over all heads, part of each rotated.

Source: the model card of MiniMax-M2, 2025.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail_plugins.layers.attention.head_norm import WholeRMSNorm
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models._moe import lettered, num_experts


class MiniMaxM2Layer(DecoderLayer):
    """A layer of experts."""

    def build_mlp(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> MoE:
        """Return the layer's router and experts."""
        settings = context.model.hf_config
        picked = int(settings["num_experts_per_tok"])
        return MoE(
            context,
            name.replace(".mlp", ".block_sparse_moe"),
            num_experts=num_experts(settings),
            rule=RoutingRule(num_picked=picked, scoring="sigmoid", renormalizes=True),
            inner=int(settings["intermediate_size"]),
            act=config.hidden_act,
            routes_in_float32=True,
            has_correction_bias=True,
        )


class MiniMaxM2ForCausalLM(DecoderForCausalLM):
    """MiniMax M2 with a head."""

    info = Info(
        summary="MiniMax M2 (mixture of experts)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M2",
    )
    layer_class = MiniMaxM2Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: published ones give the rotated part in features."""
        rotated = int(model.hf_config.get("rotary_dim") or model.head_size)
        return usual_config(
            model,
            has_qkv_bias=False,
            has_out_bias=False,
            qk_norm=True,
            head_norm=WholeRMSNorm,
            rope_theta=5e6,
            rotary_share=rotated / model.head_size,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: the experts' are Mixtral's."""
        return lettered(super().weight_map())
