"""ERNIE 4.5 with experts: a softmax with a correction bias, shared experts, interleaved rotation.

Source: Baidu-ERNIE-Team, ERNIE 4.5 Technical Report, 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail_plugins.models._moe import SharedMoE, num_experts, softmax_rule

DRAFTER = "mtp_"
"""The prefix of the drafter's names."""


class Ernie45MoeLayer(DecoderLayer):
    """A layer of experts, or with one MLP if config.json says so."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if not is_sparse(settings, layer):
            return super().build_mlp(context, name, config, layer)
        inner = int(settings["moe_intermediate_size"])
        rule = softmax_rule(settings, renormalizes=True)
        return SharedMoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=replace(rule, least_sum=float(settings["moe_norm_min"])),
            inner=inner,
            act=config.hidden_act,
            shared_inner=int(settings["moe_num_shared_experts"]) * inner,
            shared_bias=config.has_mlp_bias,
            routes_in_float32=True,
            has_correction_bias=True,
        )


def is_sparse(config: dict[str, Any], layer: int) -> bool:
    """Return whether a layer has experts."""
    last = int(config["moe_layer_end_index"])
    is_every = (layer + 1) % int(config["moe_layer_interval"]) == 0
    return (
        is_every and layer >= int(config["moe_layer_start_index"]) and (last < 0 or layer <= last)
    )


class Ernie45MoeForCausalLM(DecoderForCausalLM):
    """ERNIE 4.5 with experts and a head, without its drafter."""

    info = Info(
        summary="ERNIE 4.5 (mixture of experts)",
        source="https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf",
    )
    layer_class = Ernie45MoeLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: one switch for all biases. Raises: ConfigError for a tied one."""
        has_bias = bool(model.hf_config["use_bias"])
        if has_bias and model.hf_config["tie_word_embeddings"]:
            raise ConfigError(
                "a head that shares the embedding's table cannot have a bias.",
                where="config.json: use_bias",
                fix="use --model-impl transformers.",
            )
        return usual_config(
            model,
            has_qkv_bias=has_bias,
            has_out_bias=has_bias,
            has_mlp_bias=has_bias,
            has_head_bias=has_bias,
            is_interleaved=True,
            rope_theta=5e5,
        )

    def weight_map(self) -> WeightMap:
        """Return the names, without the drafter's."""
        usual = super().weight_map()
        bias = "e_score_correction_bias"
        return replace(
            usual,
            renames=((f".moe_statics.{bias}", f".{bias}"),),
            ignored=(*usual.ignored, DRAFTER),
        )
