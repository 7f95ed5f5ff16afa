"""Facts of Nemotron Labs Dory: the kinds of its layers, some of which run several times, and what a
row caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
MLP = "mlp"
"""The kind of layers that do not attend."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: attention and MLPs in turns. Raises: ConfigError"""
    kinds = tuple(config.get("layer_types") or ())
    if MLP not in kinds or len(kinds) != int(config["num_hidden_layers"]):
        raise ConfigError(
            "it does not list every layer: attention and MLPs in turns.",
            where="config.json: layer_types",
            fix='list num_hidden_layers of them, as released: every other one is "mlp".',
        )
    return kinds


def recurrent(config: Config) -> range:
    """Return the layers that are passed `n_recurrent_loops` times."""
    first, count = int(config["n_input_layers"]), config.get("n_recurrent_layers")
    last = int(config["num_hidden_layers"]) - int(config["n_output_layers"])
    return range(first, last if count is None else first + int(count))


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values for each time that a layer attends."""
    kinds, again = layer_types(config), recurrent(config)
    attending = [layer for layer, kind in enumerate(kinds) if kind != MLP]
    more = sum(layer in again for layer in attending) * (int(config["n_recurrent_loops"]) - 1)
    return CacheFacts(num_attention_layers=len(attending) + more)


DORY = Value(
    summary="Nemotron Labs Dory",
    value=ModelFacts(
        defaults={
            "vocab_size": 131072,
            "hidden_size": 2560,
            "intermediate_size": 7168,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "initializer_range": 0.0177,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "sliding_window": 1024,
            "ngpt_alpha_init": 0.05,
            "n_recurrent_loops": 2,
            "recurrent_kv_cache_mode": "per_loop",
        },
        cache=f"{__name__}:cache",
    ),
)
