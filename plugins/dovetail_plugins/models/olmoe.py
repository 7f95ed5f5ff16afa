"""OLMoE and FlexOlmo: OLMo with experts in all layers; FlexOlmo is post-norm.

Sources: Muennighoff et al. 2024 (OLMoE); Shi et al. 2025 (FlexOlmo).
"""

from __future__ import annotations

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail_plugins.layers.attention.head_norm import WholeRMSNorm
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.post_norm import PostNormLayer
from dovetail_plugins.models._moe import num_experts, softmax_rule


def _experts(context: BuildContext, name: str, config: DecoderConfig) -> MoE:
    """Return the router and experts of a layer."""
    settings = context.model.hf_config
    return MoE(
        context,
        name,
        num_experts=num_experts(settings),
        rule=softmax_rule(settings),
        inner=int(settings["intermediate_size"]),
        act=config.hidden_act,
    )


class OlmoeLayer(DecoderLayer):
    """A layer of experts."""

    def build_mlp(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> MoE:
        """Return the layer's router and experts."""
        return _experts(context, name, config)


class FlexOlmoLayer(PostNormLayer):
    """A layer of experts with norms after attention and experts."""

    def build_mlp(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> MoE:
        """Return the layer's router and experts."""
        return _experts(context, name, config)


class OlmoeForCausalLM(DecoderForCausalLM):
    """OLMoE with a head."""

    info = Info(summary="OLMoE (mixture of experts)", source="https://arxiv.org/abs/2409.02060")
    layer_class = OlmoeLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms over all heads. Raises: ConfigError for clipping after them."""
        if model.hf_config.get("clip_qkv") is not None:
            raise ConfigError(
                "queries and keys that are bounded behind their norms are not supported.",
                where="config.json: clip_qkv",
                fix="use --model-impl transformers.",
            )
        return usual_config(model, qk_norm=True, head_norm=WholeRMSNorm)


class FlexOlmoForCausalLM(DecoderForCausalLM):
    """FlexOlmo with a head."""

    info = Info(summary="FlexOlmo (mixture of experts)", source="https://arxiv.org/abs/2507.07024")
    layer_class = FlexOlmoLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms over all heads."""
        return usual_config(model, qk_norm=True, head_norm=WholeRMSNorm, rope_theta=5e5)
