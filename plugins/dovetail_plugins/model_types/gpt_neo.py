"""Facts of GPT-Neo: which layers have windows, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

LOCAL = "local"


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each layer's kind: `attention_types` holds pairs of kinds and of how often they come
    in turn."""
    turns = config.get("attention_types") or [[["global", LOCAL], 12]]
    return tuple(chain.from_iterable(list(kinds) * int(count) for kinds, count in turns))


GPT_NEO = Value(
    summary="GPT-Neo",
    value=ModelFacts(
        positions="learned",
        attribute_map={
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
        },
        defaults={
            "vocab_size": 50257,
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "max_position_embeddings": 2048,
            "window_size": 256,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-05,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "tie_word_embeddings": True,
        },
    ),
)
