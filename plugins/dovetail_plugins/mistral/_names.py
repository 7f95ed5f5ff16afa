"""Names of tensors in Mistral's own weight files, and the order of rows in query and key matrices.

Imports no torch before rows are moved.
Source: https://github.com/mistralai/mistral-inference (transformer_layers.py, rope.py): a rotary
pair is two neighbouring rows there, and two rows half a head apart in Hugging Face layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WHOLE = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
}
_LEAVES = {
    "weight": "weight",
    "bias": "bias",
    "qscale_weight": "weight_scale",
    "qscale_act": "input_scale",
}
_NAME = re.compile(r"layers\.(\d+)\.(.+)\.(\w+)")
_EXPERT = re.compile(r"feed_forward\.experts\.(\d+)\.(w[123])")


def name_of(name: str) -> str:
    """Return the tensor's name in Hugging Face layout; a foreign name is unchanged."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    number, middle, leaf = match.groups()
    expert = _EXPERT.fullmatch(middle)
    if expert:
        middle = f"block_sparse_moe.experts.{expert[1]}.{expert[2]}"
    elif middle in _LAYER:
        middle = _LAYER[middle]
    else:
        return name
    return f"model.layers.{number}.{middle}.{_LEAVES.get(leaf, leaf)}"


def rearranger(params: Mapping[str, Any]) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Return the function that puts the rows of query and key tensors into the order of half-split
    heads."""
    num_heads = int(params["n_heads"])
    heads = {"q_proj": num_heads, "k_proj": int(params.get("n_kv_heads") or num_heads)}

    def rearrange(name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor called `name` (in Hugging Face layout) with its rows in order."""
        words = name.split(".")
        if words[-1] not in ("weight", "bias") or words[-2] not in heads:
            return tensor
        return halves_apart(tensor, heads[words[-2]])

    return rearrange


def halves_apart(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return rows (pair, member) of each head as (member, pair). Shapes: [H D, ...] -> the same"""
    import torch

    from dovetail_plugins.load_formats._memory import passing_tensor

    rest = tensor.shape[1:]
    pairs = tensor.shape[0] // (2 * num_heads)
    # Eight-bit floats know no transpose-and-copy everywhere: their bits do.
    bits = tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
    apart = passing_tensor((num_heads, 2, pairs, *rest), bits.dtype)
    apart.copy_(bits.reshape(num_heads, pairs, 2, *rest).transpose(1, 2))
    return apart.view(tensor.shape).view(tensor.dtype)
