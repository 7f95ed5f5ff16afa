"""Qwen3: Llama with a norm on every query and key head. Source: Yang et al. 2025."""

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
    windowed_by_switch,
)

__all__ = ["MLP", "Attention", "Block", "Qwen3ForCausalLM", "Qwen3Model"]


class Qwen3Model(DecoderModel):
    """The plain decoder."""


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Qwen3 with a head."""

    info = Info(summary="Qwen3", source="https://arxiv.org/abs/2505.09388")
    trunk = Qwen3Model

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the style: norms on the heads."""
        return plain_style(model, norms_heads=True, **windowed_by_switch(model))
