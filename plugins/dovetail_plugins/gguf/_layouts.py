"""Model names of a GGUF file's tensors: a table for each architecture.

Names are those of the Hugging Face checkpoint or, if the model's plugin accepts them too, of the
shared decoder. Imports no torch. Source: tensor_mapping.py of the gguf package and the converters
of llama.cpp (https://github.com/ggml-org/llama.cpp/tree/master/conversion).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
_GEMMA3N_TRUNK = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "altup_proj": "model.altup_projections",
    "altup_unembd_proj": "model.altup_unembed_projections",
}
_GEMMA3N = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GEMMA3N_SCALE = {"altup_correct_scale.weight": "altup.correct_output_scale"}
_GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}
_GLM4_MOE = {
    "post_attention_norm": "post_attention_layernorm",
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

_SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_HUNYUAN = {
    "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
    "ffn_up_shexp": "mlp.shared_mlp.up_proj",
    "ffn_down_shexp": "mlp.shared_mlp.down_proj",
}
_ERNIE = {"exp_probs_b.bias": "mlp.e_score_correction_bias"}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
_INDEXER = {
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
}
_QKV = {"attn_qkv": "self_attn.qkv_proj"}


def _mixer(name: str, **more: str) -> dict[str, str]:
    """Return the names of the parts of a mixer of Mamba 1 or 2."""
    parts = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_x": "x_proj", "ssm_dt": "dt_proj",
             "ssm_norm": "norm", "ssm_out": "out_proj", **more}  # fmt: skip
    return {ours: f"{name}.{theirs}" for ours, theirs in parts.items()}


def _vectors(name: str, *, has_steps: bool = True) -> dict[str, str]:
    """Return the names of a mixer's tensors that belong to no module. `has_steps`: the bias of the
    time steps is one of them, as in Mamba 2."""
    vectors = {"ssm_a": f"{name}.A_log", "ssm_d": f"{name}.D"}
    return vectors | ({"ssm_dt.bias": f"{name}.dt_bias"} if has_steps else {})


def _feed_forward(name: str, **more: str) -> dict[str, str]:
    """Return the names of a gated MLP, and of experts under the same name."""
    parts = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj",
             "ffn_gate_exps": "experts.gate_proj", "ffn_up_exps": "experts.up_proj",
             "ffn_down_exps": "experts.down_proj", "ffn_gate_inp": "router", **more}  # fmt: skip
    return {ours: f"{name}.{theirs}" for ours, theirs in parts.items()}


_MAMBA = {"attn_norm": "norm", **_mixer("mixer")}
_FALCON_H1 = {
    **_mixer("mamba"),
    **_feed_forward("feed_forward"),
    "ffn_norm": "pre_ff_layernorm",
}
_LFM2 = {
    **_feed_forward("feed_forward"),
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_LFM2_TRUNK = _TRUNK | {"token_embd_norm": "model.norm"}
_GRANITE_HYBRID = {
    **_mixer("mamba"),
    **_feed_forward("block_sparse_moe", ffn_gate_inp="gate"),
    "ffn_gate": "shared_mlp.gate_proj",
    "ffn_up": "shared_mlp.up_proj",
    "ffn_down": "shared_mlp.down_proj",
    "ffn_gate_shexp": "shared_mlp.gate_proj",
    "ffn_up_shexp": "shared_mlp.up_proj",
    "ffn_down_shexp": "shared_mlp.down_proj",
}
_JAMBA = {
    **_mixer("mamba", ssm_dt_norm="dt_layernorm", ssm_b_norm="b_layernorm",
             ssm_c_norm="c_layernorm"),
    **_feed_forward("feed_forward"),
    "ffn_norm": "pre_ff_layernorm",
}  # fmt: skip
_LLAMA4 = _feed_forward(
    "feed_forward",
    ffn_gate_shexp="shared_expert.gate_proj",
    ffn_up_shexp="shared_expert.up_proj",
    ffn_down_shexp="shared_expert.down_proj",
)
_NEMOTRON_H = {
    **_mixer("mixer"),
    "attn_norm": "norm",
    "attn_q": "mixer.q_proj",
    "attn_k": "mixer.k_proj",
    "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
}
_QWEN3_NEXT = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_FALCON_TWO_NORMS = {"attn_norm": "post_attention_layernorm", "attn_norm_2": "input_layernorm"}
_BLOOM_TRUNK = _TRUNK | {"token_embd_norm": "model.embed_norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNames:
    """A family's names.

    `block`: names of modules in a block without "blk.N."; `own`: whole names of tensors in a block
    that are not called after their module. `joined`: tensors that are parts of one matrix of the
    checkpoint. `turns_heads`: rows of q and k are in another order; `adds_one`: norm weights are
    stored plus one; `is_input_first`: the checkpoint's matrices are [in, out]; `has_letters`: the
    checkpoint names the matrices of an expert w1, w3 and w2. `stacked`: tensors outside blocks that
    are several matrices, numbered in the checkpoint."""

    block: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, str] = field(default_factory=dict)
    trunk: Mapping[str, str] = field(default_factory=lambda: _TRUNK)
    blocks: str = "model.layers"
    turns_heads: bool = False
    adds_one: bool = False
    is_input_first: bool = False
    has_letters: bool = False
    stacked: tuple[str, ...] = ()


LAYOUTS: dict[str, FamilyNames] = {
    "llama": FamilyNames(block=_BLOCK | _MIXTRAL, turns_heads=True, has_letters=True),
    "qwen2": FamilyNames(block=_BLOCK),
    "qwen2moe": FamilyNames(block=_BLOCK | _MOE),
    "qwen3": FamilyNames(block=_BLOCK),
    "qwen3moe": FamilyNames(block=_BLOCK | _MOE),
    "phi3": FamilyNames(block=_BLOCK | _FUSED),
    "gemma": FamilyNames(block=_BLOCK, adds_one=True),
    "gemma2": FamilyNames(block=_BLOCK | _FOUR_NORMS, adds_one=True),
    "gemma3": FamilyNames(block=_BLOCK | _FOUR_NORMS, adds_one=True),
    "gemma3n": FamilyNames(
        block=_BLOCK | _FOUR_NORMS | _GEMMA3N,
        own=_GEMMA3N_SCALE,
        trunk=_TRUNK | _GEMMA3N_TRUNK,
        stacked=("altup_proj", "altup_unembd_proj"),
    ),
    "olmo2": FamilyNames(block=_BLOCK | _NORMS_BEHIND),
    "cohere2": FamilyNames(block=_BLOCK),
    "glm4": FamilyNames(block=_BLOCK | _GLM4),
    "glm4moe": FamilyNames(block=_BLOCK | _MOE | _GLM4_MOE, own=_CORRECTION),
    "gpt-oss": FamilyNames(block=_BLOCK | _MOE | _GPT_OSS),
    "gpt2": FamilyNames(
        block=_GPT2_BLOCK, trunk=_GPT2_TRUNK, blocks="transformer.h", is_input_first=True
    ),
    "deepseek2": FamilyNames(
        block=_BLOCK | _MOE | _SHARED | _LATENT,
        own=_CORRECTION,
        joined=dict.fromkeys(("attn_k_b", "attn_v_b"), "self_attn.kv_b_proj"),
    ),
    "deepseek32": FamilyNames(
        block=_BLOCK | _MOE | _GLM4_MOE | _SHARED | _LATENT | _INDEXER,
        own=_CORRECTION,
        joined=dict.fromkeys(("attn_k_b", "attn_v_b"), "self_attn.kv_b_proj"),
    ),
    "mamba": FamilyNames(block=_MAMBA, own=_vectors("mixer", has_steps=False)),
    "mamba2": FamilyNames(block=_MAMBA, own=_vectors("mixer")),
    "falcon-h1": FamilyNames(
        block=_BLOCK | _FALCON_H1,
        own=_vectors("mamba") | {"ffn_norm": "pre_ff_layernorm.weight"},
    ),
    "lfm2": FamilyNames(block=_BLOCK | _LFM2, trunk=_LFM2_TRUNK),
    "granitehybrid": FamilyNames(
        block=_BLOCK | _GRANITE_HYBRID, own=_vectors("mamba"), turns_heads=True
    ),
    "jamba": FamilyNames(block=_BLOCK | _JAMBA, own=_vectors("mamba", has_steps=False)),
    "llama4": FamilyNames(block=_BLOCK | _LLAMA4),
    "qwen3next": FamilyNames(
        block=_BLOCK | _MOE | _QWEN3_NEXT, own=_vectors("linear_attn"), adds_one=True
    ),
    "nemotron_h": FamilyNames(block=_NEMOTRON_H, own=_vectors("mixer")),
    "starcoder": FamilyNames(block=_GPT2_BLOCK, trunk=_GPT2_TRUNK, blocks="transformer.h"),
    "starcoder2": FamilyNames(block=_BLOCK),
    "falcon": FamilyNames(block=_BLOCK | _QKV),
    "bloom": FamilyNames(block=_BLOCK | _QKV, trunk=_BLOOM_TRUNK),
    "mpt": FamilyNames(block=_BLOCK | _QKV),
    "gptneox": FamilyNames(block=_BLOCK | _QKV),
    "phi2": FamilyNames(block=_BLOCK | _QKV),
    "stablelm": FamilyNames(block=_BLOCK),
    "nemotron": FamilyNames(block=_BLOCK, adds_one=True),
    "granite": FamilyNames(block=_BLOCK, turns_heads=True),
    "granitemoe": FamilyNames(block=_BLOCK | _MOE | _SHARED, turns_heads=True),
    "olmo": FamilyNames(block=_BLOCK, turns_heads=True),
    "olmoe": FamilyNames(block=_BLOCK | _MOE),
    "exaone": FamilyNames(block=_BLOCK),
    "exaone4": FamilyNames(block=_BLOCK | _NORMS_BEHIND),
    "smollm3": FamilyNames(block=_BLOCK, turns_heads=True),
    "arcee": FamilyNames(block=_BLOCK, turns_heads=True),
    "internlm2": FamilyNames(block=_BLOCK, turns_heads=True),
    "minicpm": FamilyNames(block=_BLOCK, turns_heads=True),
    "hunyuan-dense": FamilyNames(block=_BLOCK),
    "hunyuan-moe": FamilyNames(block=_BLOCK | _MOE | _HUNYUAN),
    "ernie4_5": FamilyNames(block=_BLOCK),
    "ernie4_5-moe": FamilyNames(block=_BLOCK | _MOE | _SHARED, own=_ERNIE),
    "seed_oss": FamilyNames(block=_BLOCK | {"post_attention_norm": "post_attention_layernorm"}),
    "dots1": FamilyNames(block=_BLOCK | _MOE | _SHARED, own=_CORRECTION),
    "command-r": FamilyNames(block=_BLOCK),
}
"""general.architecture -> names."""

FALCON_TWO_NORMS = FamilyNames(block=_BLOCK | _QKV | _FALCON_TWO_NORMS)
"""Falcon 40B and similar models: attention and MLP have separate norms."""
