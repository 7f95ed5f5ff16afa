"""OLMo Hybrid: three of four layers use the gated delta rule after a norm; the others are OLMo 3's,
which norm the outputs of attention and MLP, without positions.

Source: OLMo Team, OLMo Hybrid, 2026; Yang et al., Gated Delta Networks, 2024 (arXiv 2412.06464);
Grazzi et al., Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues, 2024 (arXiv
2411.12537).
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.config.checkpoint.rope import rope_of
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import FULL, DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.layers.attention.head_norm import WholeRMSNorm
from dovetail_plugins.layers.mixers.delta import DeltaMixer
from dovetail_plugins.layers.mixers.hybrid import HybridLayer, HybridModel
from dovetail_plugins.layers.post_norm import PostNormLayer
from dovetail_plugins.model_types.olmo_hybrid import delta_sizes, layer_types

DELTA = ".linear_attn."
APART = {
    "in_proj_q": ("in_proj_qkvz", "q"),
    "in_proj_k": ("in_proj_qkvz", "k"),
    "in_proj_v": ("in_proj_qkvz", "v"),
    "g_proj": ("in_proj_qkvz", "z"),
    "b_proj": ("in_proj_ba", "b"),
    "a_proj": ("in_proj_ba", "a"),
    **{f"{part}_conv1d": ("conv1d", part) for part in "qkv"},
}
"""Names of inputs of the delta layers, each with a separate matrix."""
RENAMES = (
    *((f"{DELTA}{part}_proj.", f"{DELTA}in_proj_{part}.") for part in "qkv"),
    (f"{DELTA}o_norm.", f"{DELTA}norm."),
    (f"{DELTA}o_proj.", f"{DELTA}out_proj."),
    (".attention_layer_norm.", ".input_layernorm."),
    (".feedforward_layer_norm.", ".post_attention_layernorm."),
)


class OlmoHybridLayer(HybridLayer, PostNormLayer):
    """One layer: the pre-norm delta rule, or post-norm attention."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule."""
        return DeltaMixer(context, name, delta_sizes(context.model.hf_config))


def has_positions(model: ModelSpec) -> bool:
    """Return whether the attention layers are rotated: in released checkpoints they are not."""
    return rope_of(model.hf_config).get("rope_theta") is not None


class OlmoHybridForCausalLM(DecoderForCausalLM):
    """OLMo Hybrid with a head."""

    info = Info(summary="OLMo Hybrid: gated delta rule", source="https://allenai.org/olmo")
    model_class = HybridModel
    layer_class = OlmoHybridLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: q and k are normed over all heads."""
        kinds = layer_types(model.hf_config)
        full = frozenset(i for i, kind in enumerate(kinds) if kind == FULL)
        return usual_config(
            model,
            layer_types=kinds,
            qk_norm=True,
            head_norm=WholeRMSNorm,
            unrotated=frozenset() if has_positions(model) else full,
        )

    def weight_map(self) -> WeightMap:
        """Return the names. The layers that draft are not run."""
        usual = super().weight_map()
        return replace(
            usual,
            renames=RENAMES,
            fused={**usual.fused, **APART},
            ignored=(*usual.ignored, "mtp."),
        )
