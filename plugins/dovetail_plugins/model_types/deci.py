"""Facts of DeciLM and Nemotron NAS: what each block is made of, and what a row caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
_MULTIPLE = 256
"""Inner sizes of MLPs are rounded up to a multiple of it."""
FIELD = "config.json: block_configs"
_INNER = "intermediate_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one block is made of. `kv_heads`: of its attention, 0: it does not attend; `inner`: of
    its MLP, 0: it has none. `mixes` and `feeds`: one matrix takes the place of the attention, of
    the MLP."""

    kv_heads: int = 0
    inner: int = 0
    mixes: bool = False
    feeds: bool = False


def blocks(config: Config) -> tuple[Block, ...]:
    """Return every block of a model. Raises: ConfigError if they are not stated, or oddly"""
    stated = config.get("block_configs")
    if stated is None:
        alike = [config.get("num_key_value_heads")] * int(config["num_hidden_layers"])
        counts, inner = config.get("num_key_value_heads_per_layer", alike), config.get(_INNER)
        if inner is None or None in counts:
            raise ConfigError("neither the blocks nor their sizes are stated.", where=FIELD)
        found = tuple(Block(kv_heads=int(count), inner=int(inner)) for count in counts)
    else:
        found = tuple(_block(config, one) for one in stated)
    if len(found) != config["num_hidden_layers"]:
        raise ConfigError(
            f"{len(found)} blocks of {config['num_hidden_layers']} layers.", where=FIELD
        )
    return found


def _block(config: Config, stated: Config) -> Block:
    attention, feed = stated.get("attention") or {}, stated.get("ffn") or {}
    if attention.get("window_length") or attention.get("num_sink_tokens"):
        raise ConfigError(
            "attention to a window with sinks is not supported in these blocks.",
            where=FIELD,
            fix="use a checkpoint without window_length.",
        )
    group = attention.get("n_heads_in_group")
    heads = int(config["num_attention_heads"])
    if group and heads % int(group):
        raise ConfigError(f"groups of {group} of {heads} heads.", where=FIELD)
    return Block(
        kv_heads=heads // int(group) if group and not attention.get("no_op") else 0,
        inner=0 if feed.get("no_op") else _inner(config, feed),
        mixes=bool(attention.get("replace_with_linear")),
        feeds=bool(feed.get("replace_with_linear")),
    )


def _inner(config: Config, feed: Config) -> int:
    """Return the inner size of an MLP, which is stated, or follows from a multiplier."""
    if feed.get(_INNER) is not None:
        return int(feed[_INNER])
    inner = int(2 * float(feed.get("ffn_mult") or 0) * int(config["hidden_size"]) / 3)
    return -(-inner // _MULTIPLE) * _MULTIPLE


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values of the blocks that attend."""
    counts = [block.kv_heads for block in blocks(config) if block.kv_heads]
    size = config.get("head_dim") or int(config["hidden_size"]) // config["num_attention_heads"]
    return CacheFacts(
        num_attention_layers=len(counts), second_heads=(max(counts), int(size)) if counts else None
    )


_FACTS = ModelFacts(
    cache=f"{__name__}:cache",
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
)
DECI = Value(summary="DeciLM", value=_FACTS)
NEMOTRON_NAS = Value(summary="Llama Nemotron Super and Ultra", value=_FACTS)
