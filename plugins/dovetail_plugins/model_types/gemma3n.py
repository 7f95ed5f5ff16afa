"""Facts of Gemma 3n's text model: unusual traits, and config.json defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._shared_kv import kinds, sources

FULL_EVERY = 5
"""Every N-th layer has full attention, if config.json does not list them."""


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each layer's kind of attention."""
    return kinds(config, every=FULL_EVERY)


def cache(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: nothing in the last layers."""
    found = sources(config, layer_types(config))
    return CacheFacts(num_attention_layers=len(set(found)), sources=found)


FACTS = ModelFacts(
    overflows_in_float16=True,
    length_is_scaled=True,
    has_two_rotary_tables=True,
    cache=f"{__name__}:cache",
    defaults={
        "vocab_size": 262400,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
    },
)

GEMMA3N_TEXT = Value(summary="Gemma 3n, text only", value=FACTS)
GEMMA3N = Value(
    summary="Gemma 3n with its encoders, whose text model has its own settings",
    value=dataclasses.replace(FACTS, defaults={}, cache=""),
)
