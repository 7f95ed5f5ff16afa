"""Qwen2 and Qwen2.5: Llama with biases on q, k, v. Source: Yang et al. 2024."""

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

__all__ = ["MLP", "Attention", "Block", "Qwen2ForCausalLM", "Qwen2Model"]


class Qwen2Model(DecoderModel):
    """The plain decoder."""


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Qwen2 with a head."""

    info = Info(summary="Qwen2 and Qwen2.5", source="https://arxiv.org/abs/2407.10671")
    trunk = Qwen2Model

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the style: biases on q, k, v whatever the config says."""
        return plain_style(
            model, has_qkv_bias=True, has_out_bias=False, **windowed_by_switch(model)
        )
