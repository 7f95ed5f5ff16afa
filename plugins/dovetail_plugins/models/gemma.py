"""Gemma: scaled embeddings, norms that store w - 1, a GELU gate, tied head.

Source: Gemma Team 2024.
"""

from __future__ import annotations

from typing import Any

import torch

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.norm import GemmaRMSNorm


def gemma_config(model: ModelSpec, **changes: Any) -> DecoderConfig:
    """Return the config that all Gemma generations share, with `changes` applied."""
    config = model.hf_config
    scale = torch.tensor(model.hidden_size**0.5, dtype=dtype_of(model.dtype), device="cpu")
    fields: dict[str, Any] = {
        "norm": GemmaRMSNorm,
        "hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh",
        "embedding_scale": float(scale),
        "is_tied": bool(config.get("tie_word_embeddings", True)),
    }
    return usual_config(model, **{**fields, **changes})


class GemmaForCausalLM(DecoderForCausalLM):
    """Gemma with a head."""

    info = Info(summary="Gemma", source="https://arxiv.org/abs/2403.08295")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. If config.json names the exact GELU, the tanh form is meant."""
        return gemma_config(model)
