"""Bamba: layers of a Mamba 2 mixer, some of attention in which half of each head is rotated.

Source: IBM, Bamba: inference-efficient hybrid Mamba2 model, 2024.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.layers.mixers.hybrid import HybridModel
from dovetail_plugins.model_types.bamba import layer_types
from dovetail_plugins.models._hybrid import MambaLayer, jamba_names


class BambaForCausalLM(DecoderForCausalLM):
    """Bamba with its head."""

    info = Info(summary="Bamba: Mamba 2 and attention", source="https://huggingface.co/blog/bamba")
    model_class = HybridModel
    layer_class = MambaLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config; half of a head is rotated whatever config.json says."""
        return usual_config(model, layer_types=layer_types(model.hf_config), rotary_share=0.5)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return jamba_names(super().weight_map())
