"""Facts of Whisper: encoder and decoder have separate sizes."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.bart import OF_DECODER

FACTS = ModelFacts(
    positions="learned",
    cache="dovetail_plugins.model_types.bart:kept",
    encoder_input="audio",
    encoder_rows="max_source_positions",
    defaults={
        "vocab_size": 51865,
        "num_mel_bins": 80,
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_ffn_dim": 1536,
        "encoder_attention_heads": 6,
        "decoder_layers": 4,
        "decoder_ffn_dim": 1536,
        "decoder_attention_heads": 6,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
        "decoder_start_token_id": 50257,
    },
    attribute_map={**OF_DECODER, "max_position_embeddings": "max_target_positions"},
)

WHISPER = Value(summary="Whisper", value=FACTS)
