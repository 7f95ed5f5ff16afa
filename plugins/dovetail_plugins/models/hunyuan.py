"""Hunyuan, dense: Llama whose heads are normed after they have been rotated, with a base of
rotation that a number alpha stretches.

Source: the model cards of Hunyuan-7B-Instruct and its smaller ones.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rotary, rope_settings, unscaled
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderModel, usual_config


class HunYuanModel(DecoderModel):
    """The decoder with a stretched rotary base if the config has an `alpha`."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return one rotary table; "dynamic" with an alpha looks at no lengths."""
        settings = rope_settings(context)
        alpha = settings.optional("alpha")
        if alpha and settings.rule == "dynamic":
            stretch = alpha ** (settings.size / (settings.size - 2))
            settings = unscaled(settings, theta=settings.theta * stretch)
        rotary = Rotary(settings, context.device)
        return nn.ModuleDict({layer_type: rotary for layer_type in sorted(layer_types)})


class HunYuanDenseV1ForCausalLM(DecoderForCausalLM):
    """Dense Hunyuan with a head."""

    info = Info(
        summary="Hunyuan, dense", source="https://huggingface.co/tencent/Hunyuan-7B-Instruct"
    )
    model_class = HunYuanModel

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        return usual_config(model, qk_norm=True, norms_turned=True)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        renames = ((".query_layernorm.", ".q_norm."), (".key_layernorm.", ".k_norm."))
        return replace(super().weight_map(), renames=renames)
