"""Groups tensors by layer, and layers by purpose. Uses only names, not files or formats."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dovetail.interfaces.data.headers import StoredLayer, TensorHeader
from dovetail.interfaces.data.spec import ModelSpec

EMBEDDING, HEAD, NORM, ROUTER = "embedding", "head", "norms", "router"
ATTENTION, FEED_FORWARD, EXPERTS = "attention", "feed-forward", "experts"
SHARED, OTHER, UNUSED = "shared experts", "other", "not loaded"
ORDER = (EMBEDDING, ATTENTION, FEED_FORWARD, EXPERTS, SHARED, ROUTER, NORM, HEAD, OTHER, UNUSED)

_PURPOSES: tuple[tuple[str, str], ...] = (
    (UNUSED, r"rotary_emb$|(^|\.)(visual|vision_tower|vision_model|multi_modal_projector|audio)"),
    (NORM, r"norm[^.]*$|(^|\.)ln_\w+$|(^|\.)ln\d*$"),
    (HEAD, r"(^|\.)(lm_head|embed_out|output)$|^head$"),
    (EMBEDDING, r"^embed$|(^|\.)(embed_tokens|embed_positions|embed_in|w[tp]e|\w*embeddings?)$"),
    (SHARED, r"\.shared_experts?\."),
    (ROUTER, r"\.(gate|router|shared_expert_gate)$"),
    (EXPERTS, r"\.experts(\.|$)"),
    (ATTENTION, r"attn|attention"),
    (FEED_FORWARD, r"mlp|feed_forward|ffn|\.fc[12]$|\.h\.\d+\.|dense"),
)
_NO_WEIGHTS = ("inv_freq", "masked_bias", "position_ids", "token_type_ids")
_PLAIN_LEAVES = ("weight", "bias")
_OF_A_WEIGHT = ".weight."
_PACKED_LEAVES = ("blocks", "scales", "bias")
"""Endings of tensor names that hold packed matrices of all experts, and their biases."""
_NUMBER = re.compile(r"\.(\d+)\.")


def layers_of(headers: Iterable[TensorHeader]) -> list[StoredLayer]:
    """Return the layers of a checkpoint, each with its tensors. A matrix of all experts with its
    own name is a separate layer."""
    found: dict[str, dict[str, TensorHeader]] = {}
    for header in headers:
        holder, _, leaf = header.name.rpartition(".")
        if holder.endswith("experts"):
            holder, leaf = _of_all_experts(header)
        elif _OF_A_WEIGHT in header.name:
            holder, _, leaf = header.name.partition(_OF_A_WEIGHT)
            leaf = f"weight.{leaf}"
        found.setdefault(holder, {})[leaf] = header
    return [StoredLayer(name=name, tensors=tensors) for name, tensors in found.items()]


def _of_all_experts(header: TensorHeader) -> tuple[str, str]:
    """Return (layer, tensor) for a tensor that belongs to all experts of a block."""
    stem, _, end = header.name.rpartition("_")
    if end in _PACKED_LEAVES:
        return stem, end
    holder, _, leaf = header.name.rpartition(".")
    is_matrix = leaf not in _PLAIN_LEAVES and len(header.shape) == 3
    return (header.name, "weight") if is_matrix else (holder, leaf)


def purpose_of(layer: StoredLayer) -> str:
    """Return the purpose of a layer, judged by its name."""
    if all(leaf in _NO_WEIGHTS for leaf in layer.tensors):
        return UNUSED
    for purpose, pattern in _PURPOSES:
        if re.search(pattern, layer.name):
            return purpose
    return OTHER


def num_blocks(layers: Iterable[StoredLayer]) -> int:
    """Return the number of blocks numbered in the names; 0 if there are none."""
    numbers = {
        int(match[1])
        for layer in layers
        if purpose_of(layer) != UNUSED and (match := _NUMBER.search(f".{layer.name}."))
    }
    return max(numbers) + 1 if numbers else 0


def values_by_name(name: str, model: ModelSpec) -> int:
    """Return the number of weights of a layer with this name in a decoder of the model's sizes; 0
    for an unknown name. Used for formats whose tensors do not show it."""
    hidden, inner = model.hidden_size, _count(model, "intermediate_size")
    if ".experts." in name:
        inner = _count(model, "moe_intermediate_size") or inner
    queries = model.num_heads * model.head_size
    keys = model.num_kv_heads * model.head_size
    outputs = {
        "q_proj": queries,
        "k_proj": keys,
        "v_proj": keys,
        "o_proj": queries,
        "qkv_proj": queries + 2 * keys,
        "gate_up_proj": 2 * inner,
        "lm_head": model.vocab_size,
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"), inner),
    }
    return hidden * outputs.get(name.rpartition(".")[2], 0)


def _count(model: ModelSpec, key: str) -> int:
    """Return a number from config.json; 0 if it is not one (for example, a list per layer)."""
    value = model.hf_config.get(key)
    return value if isinstance(value, int) else 0
