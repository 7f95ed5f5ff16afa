"""GLM-4.5, 4.6 and 4.7: sigmoid-routed experts plus a shared one, dense layers first.

Half of each head is rotated. Source: GLM-4.5 Team 2025.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.models._moe import CORRECTION_BIAS, DenseFirstLayer


class Glm4MoeForCausalLM(DecoderForCausalLM):
    """GLM-4.5 with a head, without its drafter: the layer after the last."""

    info = Info(summary="GLM-4.5 (mixture of experts)", source="https://arxiv.org/abs/2508.06471")
    layer_class = DenseFirstLayer

    def __init__(self, options: object, context: BuildContext) -> None:
        super().__init__(options, context)
        self.drafter = f"model.layers.{context.model.num_layers}."

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms on heads if config.json says so, no output bias in attention."""
        has_norms = bool(model.hf_config["use_qk_norm"])
        return usual_config(model, qk_norm=has_norms, has_out_bias=False)

    def weight_map(self) -> WeightMap:
        """Return the names, without the drafter's layer."""
        usual = super().weight_map()
        return replace(usual, renames=(CORRECTION_BIAS,), ignored=(*usual.ignored, self.drafter))
