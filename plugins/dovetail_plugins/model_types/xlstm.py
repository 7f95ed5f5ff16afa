"""Facts of xLSTM: the sizes of its mixers and MLPs, what a row caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]


def head_sizes(config: Config) -> tuple[int, int, int]:
    """Return how many heads there are, and the numbers of a key and of a value."""
    heads, hidden = int(config["num_heads"]), int(config["hidden_size"])
    keys, values = (int(hidden * config[f"{word}_dim_factor"]) for word in ("qk", "v"))
    return heads, keys // heads, values // heads


def inner_size(config: Config) -> int:
    """Return the inner size of an MLP, rounded as the reference does it: a part of a number beyond
    a multiple is not rounded up."""
    multiple = int(config["ffn_round_up_to_multiple_of"])
    size = config["hidden_size"] * config["ffn_proj_factor"]
    return int((size + multiple - 1) // multiple * multiple)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a matrix and a vector for each head."""
    heads, key, value = head_sizes(config)
    return CacheFacts(
        num_attention_layers=0,
        num_state_layers=int(config["num_hidden_layers"]),
        state_numbers=heads * key * (value + 1),
    )


XLSTM = Value(
    summary="xLSTM",
    value=ModelFacts(
        positions="none",
        defaults={
            "vocab_size": 50304,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_heads": 8,
            "use_bias": False,
            "norm_eps": 1e-6,
            "qk_dim_factor": 0.5,
            "v_dim_factor": 1.0,
            "ffn_proj_factor": 2.667,
            "ffn_round_up_to_multiple_of": 64,
            "gate_soft_cap": 15.0,
            "output_logit_soft_cap": 30.0,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        attribute_map={"num_attention_heads": "num_heads"},
        cache=f"{__name__}:cache",
    ),
)
