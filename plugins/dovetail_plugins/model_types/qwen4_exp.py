"""Facts of Qwen4-Exp's text part: the kinds of layers, the sizes of pools and of n-grams, what a
row caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import qwen3_next
from dovetail_plugins.model_types.qwen3_next import LINEAR, QWEN3_5_MOE

Config = Mapping[str, Any]
FULL = "full_attention"
NUM_DIGITS = 9
"""What an indexer caches of a token's position."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind, as listed or by the interval of those that attend."""
    kinds = qwen3_next.layer_types(config)
    return tuple(LINEAR if kind == LINEAR else FULL for kind in kinds)


def ngram_layers(config: Config) -> list[int]:
    """Return the numbers of the layers with n-grams, from 0 on. Raises: ConfigError for other
    layers than those with states, and without a token that ends a text."""
    kinds = layer_types(config)
    found = sorted({int(number) - 1 for number in config.get("ple_layer_ids") or ()})
    if any(not 0 <= layer < len(kinds) or kinds[layer] != LINEAR for layer in found):
        raise ConfigError(
            "n-grams are added only in layers of linear attention.",
            where="config.json: ple_layer_ids",
            fix="list such layers, counted from 1.",
        )
    if found and end_id(config) is None:
        raise ConfigError(
            "n-grams do not cross the end of a text, and there is no token for it.",
            where="config.json: eos_token_id",
            fix="set it.",
        )
    return found


def end_id(config: Config) -> int | None:
    """Return the id of the token that ends a text, the first of several."""
    given = config.get("eos_token_id")
    first = (given or [None])[0] if isinstance(given, list) else given
    return None if first is None else int(first)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: for each kv head a value with its key, and an indexer's numbers; or
    the last inputs of a convolution and a matrix for each value head; and n-grams' last inputs."""
    kinds = layer_types(config)
    found = qwen3_next.delta_cache(kinds, config)
    layers = len(ngram_layers(config))
    width = int(config["hc_count"]) * int(config["hidden_size"])
    inputs = width * (int(config["ple_conv_kernel_size"]) - 1) * int(config["ngram_size"])
    return msgspec.structs.replace(
        found,
        num_attention_layers=kinds.count(FULL) * int(config["num_key_value_heads"]),
        latent_size=2 * int(config["head_dim"]),
        index_size=int(config.get("indexer_head_dim") or 0) + NUM_DIGITS,
        num_state_layers=found.num_state_layers + layers,
        conv_numbers=max(found.conv_numbers, inputs if layers else 0),
    )


QWEN4_EXP = Value(summary="Qwen4-Exp", value=ModelFacts(media=("image",)))
QWEN4_EXP_TEXT = Value(
    summary="the text part of Qwen4-Exp",
    value=ModelFacts(
        cache=f"{__name__}:cache",
        defaults={
            **QWEN3_5_MOE.value.defaults,
            "num_experts_per_tok": 10,
            "num_experts": 512,
            "norm_topk_prob": True,
            "hc_count": 4,
            "hc_lowrank": 320,
            "ple_conv_kernel_size": 4,
            "ngram_size": 3,
            "heads_per_ngram": 8,
            "ngram_vocab_size_base": 20_000_000,
            "make_ngram_vocab_size_divisible_by": 128,
            "seed": 1234,
            "split_ngram_parts": 512,
        },
    ),
)
