"""Facts of Gemma 3: unusual traits, and config.json defaults."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    overflows_in_float16=True,
    length_is_scaled=True,
    has_two_rotary_tables=True,
    defaults={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "use_bidirectional_attention": False,
    },
)

GEMMA3_TEXT = Value(summary="Gemma 3, text only", value=FACTS)
GEMMA3 = Value(
    summary="Gemma 3 with its image encoder, whose text model has its own settings",
    value=dataclasses.replace(FACTS, defaults={}, media=("image",), media_see_all=True),
)
