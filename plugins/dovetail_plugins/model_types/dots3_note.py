"""Facts of Dots3 Note: the kinds and sizes of its layers, as transformers and as released
checkpoints write them, what a row caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dovetail.config.checkpoint.rope import FULL, rope_of
from dovetail.engine.kv.kv_groups import MAX_GROUPS
from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
SLIDING, INDEXED = "sliding_attention", "indexed_attention"
WINDOW = 512
"""The window's tokens, if config.json does not say."""
SLIDING_SIZES = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""The sizes of windowed layers; a released config.json has others by these names after `swa_`."""
THETAS = {SLIDING: ("swa_rope_theta", 50_000.0)}
"""The field and default of the rotation's base in layers of one kind."""
THETA = ("rope_theta", 80_000_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """The sizes of one layer's attention: heads, numbers of the queries' latents and of the tokens'
    latents, and of a head its unrotated, its rotated and its value's numbers. `index_size` is that
    of an index key, 0 without an indexer."""

    num_heads: int
    query_rank: int
    latent_size: int
    plain_size: int
    rope_size: int
    value_size: int
    index_size: int

    @property
    def cached(self) -> int:
        """Return the numbers that a token's latent has, with the rotated ones."""
        return self.latent_size + self.rope_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Layers whose latents are in one block, and their window (None: all tokens are cached). Packs
    of the same place among those of their kind have the same `name` in all stages of a pipeline."""

    name: str
    layers: tuple[int, ...]
    window_tokens: int | None


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: as listed, or the first two and every fourth see all tokens.
    Released checkpoints call layers with an indexer `full_attention`. Raises: ConfigError"""
    count = int(config["num_hidden_layers"])
    indexes = config.get("use_dsa", None if "per_layer_config" in config else True)
    whole = FULL if indexes is False else INDEXED
    slides = config.get("use_sliding_window") is not False
    listed = config.get("layer_types")
    if not listed:
        listed = [SLIDING if slides and i > 1 and i % 4 != 1 else whole for i in range(count)]
    unknown = sorted(set(listed) - {FULL, INDEXED, SLIDING})
    if unknown:
        raise ConfigError(
            f"layers are of the kind {unknown[0]}.",
            where="config.json: layer_types",
            fix=f"use {INDEXED}, {SLIDING} and {FULL}.",
        )
    kinds = tuple(str(kind) for kind in listed[:count])
    return kinds if indexes is None else tuple(k if k == SLIDING else whole for k in kinds)


def layer_sizes(config: Config, layer: int) -> LayerSizes:
    """Return the sizes of a layer. Raises: ConfigError if its queries have no latents"""
    kind = layer_types(config)[layer]
    own: dict[str, Any] = {}
    listed = config.get("per_layer_config")
    if listed is not None:
        own = dict(listed.get(str(layer)) or listed.get(layer) or {})
    elif kind == SLIDING:
        own = {k: config.get(f"swa_{k}", default) for k, default in SLIDING_SIZES.items()}
        rest = own["head_dim"] - own["qk_nope_head_dim"]
        own["qk_rope_head_dim"] = config.get("swa_qk_rope_head_dim", rest)
    stated = {**config, **own}
    if stated["q_lora_rank"] is None:
        raise ConfigError(
            "its queries have no latents.",
            where="config.json: q_lora_rank",
            fix="set it to the published number.",
        )
    return LayerSizes(
        num_heads=int(stated["num_attention_heads"]),
        query_rank=int(stated["q_lora_rank"]),
        latent_size=int(stated["kv_lora_rank"]),
        plain_size=int(stated["qk_nope_head_dim"]),
        rope_size=int(stated["qk_rope_head_dim"]),
        value_size=int(stated["v_head_dim"]),
        index_size=int(stated["index_head_dim"]) if kind == INDEXED else 0,
    )


def is_sparse(config: Config, layer: int) -> bool:
    """Return whether a layer has experts: as listed, or by one of two older fields."""
    listed = config.get("mlp_layer_types")
    if listed is not None:
        return bool(listed[layer] == "sparse")
    step = config.get("moe_layer_freq", 1)
    is_one = bool(step[layer]) if isinstance(step, list) else layer % int(step) == 0
    return layer >= int(config.get("first_k_dense_replace", 1)) and is_one


def ropes(config: Config) -> dict[str, dict[str, Any]]:
    """Return the rotation of each kind of layer. What is stated for no kind, as a flag does if each
    kind has its own, is for the layers that see all tokens."""
    stated = rope_of(config)
    shared = {key: value for key, value in stated.items() if not isinstance(value, Mapping)}
    is_nested = len(shared) < len(stated)
    found = {}
    for kind in dict.fromkeys(layer_types(config)):
        name, theta = THETAS.get(kind, THETA) if is_nested or not shared else THETA
        more = shared if kind != SLIDING or not is_nested else {}
        own = {**(stated.get(kind) or {}), **more}
        found[kind] = {"rope_theta": config.get(name) or theta, **own}
    return found


def packs(config: Config, layers: Sequence[int]) -> tuple[Pack, ...]:
    """Return which of these layers have their latents in one block: all that see all tokens, and as
    many windowed ones as take no more room, so that blocks of both are about as large."""
    kinds = layer_types(config)
    whole = tuple(i for i in layers if kinds[i] != SLIDING)
    slid = tuple(i for i in layers if kinds[i] == SLIDING)
    found = [Pack(name="latents", layers=whole, window_tokens=None)] if whole else []
    if not slid:
        return tuple(found)
    fit = (
        _numbers(config, whole) // max(_numbers(config, [i]) for i in slid) if whole else len(slid)
    )
    count = min(-(-len(slid) // max(fit, 1)), MAX_GROUPS - 1)
    cuts = [len(slid) * i // count for i in range(count + 1)]
    window = int(config["sliding_window"])
    found += [
        Pack(name=f"latents.{i}", layers=slid[first:last], window_tokens=window)
        for i, (first, last) in enumerate(pairwise(cuts))
    ]
    return tuple(found)


def _numbers(config: Config, layers: Sequence[int]) -> int:
    """Return how many numbers layers cache for a token."""
    sizes = [layer_sizes(config, layer) for layer in layers]
    return sum(one.cached + one.index_size for one in sizes)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a block of each pack."""
    every = packs(config, range(int(config["num_hidden_layers"])))
    block = max(_numbers(config, pack.layers) for pack in every)
    latent = max(layer_sizes(config, i).cached for pack in every for i in pack.layers)
    num_windowed = sum(pack.window_tokens is not None for pack in every)
    return CacheFacts(
        num_attention_layers=max(1, len(every) - num_windowed),
        latent_size=latent,
        index_size=max(1, block - latent),
        num_windowed_layers=num_windowed,
        windowed_tokens=int(config["sliding_window"]),
    )


FACTS = ModelFacts(
    cache=f"{__name__}:cache",
    length_is_scaled=True,
    has_two_rotary_tables=True,
    attribute_map={
        "sliding_window": "sliding_window_size",
        "shared_experts_intermediate_size": "moe_shared_expert_intermediate_size",
    },
    defaults={
        "vocab_size": 152064,
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "moe_intermediate_size": 1536,
        "shared_experts_intermediate_size": 1536,
        "num_hidden_layers": 46,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 1024,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "head_dim": 256,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "sliding_window": WINDOW,
        "hidden_act": "silu",
        "max_position_embeddings": 524288,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 151643,
        "eos_token_id": 151668,
        "pad_token_id": 151659,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
)
DOTS3_NOTE_TEXT = Value(summary="the text part of Dots3 Note", value=FACTS)
DOTS3_NOTE = Value(
    summary="Dots3 Note, whose text settings may be its own",
    value=replace(FACTS, media=("image", "audio")),
)
