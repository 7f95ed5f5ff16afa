"""DeepSeekMoE (16B), the first DeepSeek with experts: Llama whose layers, but for the first ones,
have picked experts and shared ones.

Source: Dai et al., DeepSeekMoE, 2024, arXiv 2401.06066; the names are from its checkpoints.
"""

from __future__ import annotations

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail_plugins.models._moe import SharedMoE, num_experts, softmax_rule
from dovetail_plugins.models.deepseek import is_sparse


class DeepseekV1Layer(DecoderLayer):
    """A layer of experts, or of one MLP."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if settings.get("n_routed_experts") is None or not is_sparse(settings, layer):
            return super().build_mlp(context, name, config, layer)
        inner = int(settings["moe_intermediate_size"])
        return SharedMoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings),
            inner=inner,
            act=config.hidden_act,
            shared_inner=int(settings.get("n_shared_experts") or 0) * inner,
        )


class DeepseekForCausalLM(DecoderForCausalLM):
    """DeepSeekMoE with a head."""

    info = Info(
        summary="DeepSeekMoE 16B (mixture of experts)", source="https://arxiv.org/abs/2401.06066"
    )
    layer_class = DeepseekV1Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model)
