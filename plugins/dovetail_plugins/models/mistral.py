"""Mistral: Llama with a sliding window in every layer. Source: Jiang et al. 2023."""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import (
    MLP,
    Attention,
    Block,
    DecoderForCausalLM,
    DecoderModel,
    Style,
    plain_style,
    windowed_everywhere,
)

__all__ = ["MLP", "Attention", "Block", "MistralForCausalLM", "MistralModel"]


class MistralModel(DecoderModel):
    """The plain decoder."""


class MistralForCausalLM(DecoderForCausalLM):
    """Mistral with a head."""

    info = Info(summary="Mistral (sliding window)", source="https://arxiv.org/abs/2310.06825")
    trunk = MistralModel

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the plain style, windowed where the config gives a window."""
        return plain_style(model, **windowed_everywhere(model))
