"""Phi-3 and Phi-4 (text): Llama whose checkpoint stores q, k, v and gate, up already fused.

Source: Abdin et al. 2024.
"""

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

__all__ = ["MLP", "Attention", "Block", "Phi3ForCausalLM", "Phi3Model"]


class Phi3Model(DecoderModel):
    """The plain decoder."""


class Phi3ForCausalLM(DecoderForCausalLM):
    """Phi-3 with a head."""

    info = Info(summary="Phi-3 and Phi-4, text", source="https://arxiv.org/abs/2404.14219")
    trunk = Phi3Model

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the plain style without biases, windowed where the config gives a window."""
        return plain_style(
            model, has_qkv_bias=False, has_out_bias=False, **windowed_everywhere(model)
        )
