"""From GGUF's tensor names to those of the same model's Hugging Face checkpoint. Imports no torch.

Source: tensor_mapping.py of the gguf package and the converters of llama.cpp
(https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dovetail.interfaces.headers import TensorHeader
from dovetail_plugins.gguf._file import Extent, Model
from dovetail_plugins.gguf._types import PLAIN_DTYPES, QUANTIZED

TABLE = "embed_tokens"
"""What `stored_types` calls a token table that no head shares."""
HEAD = "lm_head"

_TRUNK = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": HEAD}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MOE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
    "ffn_up_exps": "block_sparse_moe.experts.up_proj",
    "ffn_down_exps": "block_sparse_moe.experts.down_proj",
}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT_OSS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.head_sinks",
    "ffn_gate_inp": "mlp.router",
}
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}
_GLM4_MOE = {
    "post_attention_norm": "post_attention_layernorm",
    "exp_probs_b": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_LEAVES = {"exp_probs_b": "e_score_correction_bias"}
"""Tensors that are called otherwise than weight and bias in a checkpoint."""
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GPT2_TRUNK = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": HEAD,
}
_GPT2_BLOCK = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
ROPE = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Tensors that hold settings of the rotary embedding: the config has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A family's names. `turns_heads`: rows of q and k lie in another order; `adds_one`: norm
    weights are stored plus one; `is_input_first`: the checkpoint's matrices are [in, out]."""

    block: Mapping[str, str]
    trunk: Mapping[str, str] = field(default_factory=lambda: _TRUNK)
    blocks: str = "model.layers"
    turns_heads: bool = False
    adds_one: bool = False
    is_input_first: bool = False


LAYOUTS: dict[str, Layout] = {
    "llama": Layout(block=_BLOCK | _MIXTRAL, turns_heads=True),
    "qwen2": Layout(block=_BLOCK),
    "qwen2moe": Layout(block=_BLOCK | _MOE),
    "qwen3": Layout(block=_BLOCK),
    "qwen3moe": Layout(block=_BLOCK | _MOE),
    "phi3": Layout(block=_BLOCK | _FUSED),
    "gemma": Layout(block=_BLOCK, adds_one=True),
    "gemma2": Layout(block=_BLOCK | _FOUR_NORMS, adds_one=True),
    "gemma3": Layout(block=_BLOCK | _FOUR_NORMS, adds_one=True),
    "olmo2": Layout(block=_BLOCK | _NORMS_BEHIND),
    "cohere2": Layout(block=_BLOCK),
    "glm4": Layout(block=_BLOCK | _GLM4),
    "glm4moe": Layout(block=_BLOCK | _MOE | _GLM4_MOE),
    "gpt-oss": Layout(block=_BLOCK | _MOE | _GPT_OSS),
    "gpt2": Layout(
        block=_GPT2_BLOCK, trunk=_GPT2_TRUNK, blocks="transformer.h", is_input_first=True
    ),
}
"""general.architecture -> names."""

_EXPERT_WORDS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Mixtral's own names of an expert's matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor goes: parameter `leaf` of `module`. `is_stacked`: it holds all experts'."""

    module: str
    leaf: str
    is_stacked: bool = False

    @property
    def is_matrix(self) -> bool:
        """Return whether a linear layer or the token table holds it: it may stay quantized."""
        last = self.module.rpartition(".")[2]
        is_other = "norm" in last or last.startswith("ln_") or last in ("wpe", "head_sinks")
        return self.leaf == "weight" and not is_other

    def expert(self, number: int) -> str:
        """Return the checkpoint's name of one expert's module."""
        holder, _, word = self.module.rpartition(".")
        if "block_sparse_moe" in holder:
            word = _EXPERT_WORDS[word]
        return f"{holder}.{number}.{word}"


def place_of(layout: Layout, name: str) -> Place | None:
    """Return where a tensor goes, or None for a name that is not known."""
    stem, _, leaf = name.rpartition(".")
    words = stem.split(".", 2)
    if len(words) == 3 and words[0] == "blk" and words[2] in layout.block:
        module = f"{layout.blocks}.{words[1]}.{layout.block[words[2]]}"
        leaf = _LEAVES.get(words[2], leaf)
        return Place(module=module, leaf=leaf, is_stacked=words[2].endswith("_exps"))
    if stem in layout.trunk:
        return Place(module=layout.trunk[stem], leaf=leaf)
    return None


def stored_types(model: Model, layout: Layout) -> dict[str, str]:
    """Return module -> type of all matrices of a file, nothing where none is quantized.

    A token table goes by the head's name where there is no separate head.
    """
    table = TABLE if has_head(model.extents) else HEAD
    types = {}
    for extent in model.extents:
        place = place_of(layout, extent.name)
        if place is not None and place.is_matrix:
            is_table = place.module == layout.trunk["token_embd"]
            types[table if is_table else place.module] = extent.type.name
    return types if any(name in QUANTIZED for name in types.values()) else {}


def has_head(extents: Iterable[Extent]) -> bool:
    """Return whether the head has a separate matrix."""
    return any(extent.name == "output.weight" for extent in extents)


def headers_of(model: Model) -> Iterator[TensorHeader]:
    """Yield the tensors of a model under the checkpoint's names, blocks by the type's own name."""
    layout = LAYOUTS.get(str(model.settings.get("general.architecture")))
    for extent in model.extents:
        place = None if layout is None else place_of(layout, extent.name)
        if layout is not None and place is None and extent.name.removesuffix(".weight") in ROPE:
            continue
        if place is None:
            yield _header(extent, extent.name, extent.shape, extent.num_bytes)
        elif place.is_stacked:
            shape, count = extent.shape[1:], extent.shape[0]
            for number in range(count):
                name = f"{place.expert(number)}.{place.leaf}"
                yield _header(extent, name, shape, extent.num_bytes // count)
        else:
            name = f"{place.module}.{place.leaf}"
            yield _header(extent, name, extent.shape, extent.num_bytes)


def _header(extent: Extent, name: str, shape: tuple[int, ...], num_bytes: int) -> TensorHeader:
    dtype = PLAIN_DTYPES.get(extent.type.name, extent.type.name)
    return TensorHeader(
        name=name, shape=shape, dtype=dtype, num_bytes=num_bytes, file=extent.path.name
    )
