"""Gemma: scaled embeddings, norms that store w - 1, a GELU gate, tied head.

Source: Gemma Team 2024.
"""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.norm import GemmaRMSNorm
from dovetail.layers.decoder import (
    MLP,
    Attention,
    Block,
    DecoderForCausalLM,
    DecoderModel,
    Style,
    plain_style,
    rounded,
)

__all__ = ["MLP", "Attention", "Block", "GemmaForCausalLM", "GemmaModel", "gemma_style"]


def gemma_style(model: ModelSpec, **changes: Any) -> Style:
    """Return what all Gemma generations share, with `changes` applied."""
    config = model.hf_config
    fields: dict[str, Any] = {
        "norm": GemmaRMSNorm,
        "act": config.get("hidden_activation") or "gelu_pytorch_tanh",
        "embedding_scale": rounded(model.hidden_size**0.5, dtype_of(model.dtype)),
        "is_tied": bool(config.get("tie_word_embeddings", True)),
    }
    return plain_style(model, **{**fields, **changes})


class GemmaModel(DecoderModel):
    """The plain decoder."""


class GemmaForCausalLM(DecoderForCausalLM):
    """Gemma with a head."""

    info = Info(summary="Gemma", source="https://arxiv.org/abs/2403.08295")
    trunk = GemmaModel

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return Gemma's style. Its config may name the exact GELU; the tanh form is meant."""
        return gemma_style(model)
