"""Facts of BART and related models: encoder and decoder have separate sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts, Positions
from dovetail.interfaces.plugin import Value


def kept(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: each layer its tokens and the encoder's output."""
    count = int(config["decoder_layers"])
    rows = int(config.get("max_source_positions") or config["max_position_embeddings"])
    return CacheFacts(num_attention_layers=count, num_cross_layers=count, cross_rows=rows)


OF_DECODER = {
    "hidden_size": "d_model",
    "num_hidden_layers": "decoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
}
FACTS = ModelFacts(
    positions="learned",
    cache="dovetail_plugins.model_types.bart:kept",
    encoder_input="text",
    encoder_rows="max_position_embeddings",
    defaults={
        "vocab_size": 50265,
        "d_model": 1024,
        "encoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_layers": 12,
        "decoder_ffn_dim": 4096,
        "decoder_attention_heads": 16,
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
        "decoder_start_token_id": 2,
        "eos_token_id": 2,
    },
    attribute_map=OF_DECODER,
)


def _like(*, positions: Positions, **defaults: int | None) -> ModelFacts:
    """Return BART's facts with other positions and defaults; None leaves a default out."""
    changed = {**FACTS.defaults, **defaults}
    stated = {name: value for name, value in changed.items() if value is not None}
    return dataclasses.replace(FACTS, positions=positions, defaults=stated)


_PEGASUS = _like(positions="sinusoidal", eos_token_id=1, decoder_start_token_id=0)
_MARIAN = _like(
    positions="sinusoidal", vocab_size=58101, eos_token_id=0, decoder_start_token_id=58100
)

BART = Value(summary="BART", value=FACTS)
# A language's token starts an answer of mBART: each checkpoint states its own.
MBART = Value(summary="mBART", value=_like(positions="learned", decoder_start_token_id=None))
PEGASUS = Value(summary="Pegasus", value=_PEGASUS)
MARIAN = Value(summary="Marian", value=_MARIAN)
