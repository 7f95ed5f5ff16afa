"""Mixtral: Mistral whose MLP is a mixture of experts. Source: Jiang et al. 2024."""

from __future__ import annotations

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.moe import MoE
from dovetail.layers import decoder as _decoder
from dovetail.layers.decoder import (
    FUSED,
    Attention,
    DecoderForCausalLM,
    DecoderModel,
    Style,
    plain_style,
    windowed_everywhere,
)
from dovetail_plugins.models._moe import num_experts

__all__ = ["MLP", "Attention", "Block", "MixtralForCausalLM", "MixtralModel"]


class MLP(MoE):
    """Router and experts; the picked experts' weights sum to one."""

    def __init__(self, context: BuildContext, name: str, style: Style) -> None:
        config = context.model.hf_config
        super().__init__(
            context,
            name,
            num_experts=num_experts(config),
            num_picked=int(config.get("num_experts_per_tok", 2)),
            inner=int(config["intermediate_size"]),
            act=style.act,
            renormalizes=True,
        )


class Block(_decoder.Block):
    """A block of experts."""

    def build_mlp(self, context: BuildContext, name: str, style: Style, layer: int) -> MLP:
        """Return the layer's router and experts."""
        return MLP(context, name.replace(".mlp", ".block_sparse_moe"), style)


class MixtralModel(DecoderModel):
    """The plain decoder over blocks of experts."""


class MixtralForCausalLM(DecoderForCausalLM):
    """Mixtral with a head."""

    info = Info(summary="Mixtral (mixture of experts)", source="https://arxiv.org/abs/2401.04088")
    trunk = MixtralModel
    block = Block

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the plain style, windowed where the config gives a window."""
        return plain_style(model, **windowed_everywhere(model))

    def weight_map(self) -> WeightMap:
        """Return the names: w1, w3, w2 of each expert are gate, up, down."""
        plain = super().weight_map()
        return WeightMap(
            renames=((".block_sparse_moe.", ".mlp."), (".w2.", ".down_proj.")),
            fused={**FUSED, "w1": ("gate_up_proj", "gate"), "w3": ("gate_up_proj", "up")},
            ignored=plain.ignored,
            tied=plain.tied,
        )
