"""Baichuan 1 and 2: Llama whose queries, keys and values are one matrix; the 7B rotates, the 13B
has ALiBi; Baichuan 2 divides the rows of its head by their lengths.

config.json tells them apart: the 13B states no max_position_embeddings, and Baichuan 1 no
z_loss_weight.
Source: Yang et al. 2023; the names are from its checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from dovetail.config.checkpoint.model_facts import uses_alibi
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.alibi import alibi_slopes
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.decoder_head import HEAD
from dovetail.layers.linear import Linear
from dovetail.layers.logits import LogitsHead

BAICHUAN2_TOKENS = 125696
"""The vocabulary of Baichuan 2."""


class LinearOfDirections(Linear):
    """A matrix whose rows are divided by their lengths when it has been read."""

    def finish(self) -> None:
        """Divide the rows, then let the quantization method repack them. Mutates: self

        Raises: ConfigError if the checkpoint stores the head quantized
        """
        weight = self._parameters.get("weight")
        if weight is None or not weight.is_floating_point() or weight.dim() != 2:
            raise ConfigError(
                "the rows of a quantized head cannot be divided by their lengths.",
                where="lm_head",
                fix="use a checkpoint whose head is not quantized.",
            )
        with torch.no_grad():
            weight.copy_(F.normalize(weight.float(), dim=1))
        super().finish()


class BaichuanForCausalLM(DecoderForCausalLM):
    """Baichuan 1 or 2 with a head."""

    info = Info(summary="Baichuan and Baichuan 2", source="https://arxiv.org/abs/2309.10305")

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        if is_second(context.model) and isinstance(self.lm_head, LogitsHead):
            usual = self.lm_head.linear
            assert usual is not None, "the head is not tied"
            size = context.model.hidden_size
            self.lm_head.linear = LinearOfDirections(context, HEAD, size, usual.parts, bias=False)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config, with slopes if the model has ALiBi."""
        slopes = alibi_slopes(model.num_heads) if uses_alibi(model.hf_config) else None
        return usual_config(model, alibi_slopes=slopes, is_tied=False)

    def weight_map(self) -> WeightMap:
        """Return the names: queries, keys and values are one matrix, or three in GGUF files."""
        usual = super().weight_map()
        return replace(usual, renames=((".self_attn.W_pack.", ".self_attn.qkv_proj."),))


def is_second(model: ModelSpec) -> bool:
    """Return whether a model is a Baichuan 2."""
    return "z_loss_weight" in model.hf_config or model.vocab_size == BAICHUAN2_TOKENS
