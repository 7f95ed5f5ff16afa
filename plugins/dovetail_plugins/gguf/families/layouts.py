"""Names of tensors that families share, and those of the families in the modules beside this one.

Names are those of the Hugging Face checkpoint or, if the model's plugin accepts them too, of the
shared decoder. Imports no torch. Source: tensor_mapping.py of the gguf package and the converters
of llama.cpp (https://github.com/ggml-org/llama.cpp/tree/master/conversion).
"""

from __future__ import annotations

from dovetail_plugins.gguf.families.family import TRUNK, FamilyNames

HEAD = "lm_head"

BLOCK = {
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
MOE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
    "ffn_up_exps": "block_sparse_moe.experts.up_proj",
    "ffn_down_exps": "block_sparse_moe.experts.down_proj",
}
FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT_OSS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.head_sinks",
    "ffn_gate_inp": "mlp.router",
}
NORMS_BEHIND = {
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
}
NEXT = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
"""What joins a block to the model that drafts further tokens."""
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
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

SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_HUNYUAN = {
    "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
    "ffn_up_shexp": "mlp.shared_mlp.up_proj",
    "ffn_down_shexp": "mlp.shared_mlp.down_proj",
}
_ERNIE = {"exp_probs_b.bias": "mlp.e_score_correction_bias"}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
LATENT_HALVES = dict.fromkeys(("attn_k_b", "attn_v_b"), "self_attn.kv_b_proj")
INDEXER = {
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
}
QKV = {"attn_qkv": "self_attn.qkv_proj"}


def mixer(name: str, **more: str) -> dict[str, str]:
    """Return the names of the parts of a mixer of Mamba 1 or 2."""
    parts = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_x": "x_proj", "ssm_dt": "dt_proj",
             "ssm_norm": "norm", "ssm_out": "out_proj", **more}  # fmt: skip
    return {ours: f"{name}.{theirs}" for ours, theirs in parts.items()}


def vectors(name: str, *, has_steps: bool = True) -> dict[str, str]:
    """Return the names of a mixer's tensors that belong to no module. `has_steps`: the bias of the
    time steps is one of them, as in Mamba 2."""
    vectors = {"ssm_a": f"{name}.A_log", "ssm_d": f"{name}.D"}
    return vectors | ({"ssm_dt.bias": f"{name}.dt_bias"} if has_steps else {})


def feed_forward(name: str, **more: str) -> dict[str, str]:
    """Return the names of a gated MLP, and of experts under the same name."""
    parts = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj",
             "ffn_gate_exps": "experts.gate_proj", "ffn_up_exps": "experts.up_proj",
             "ffn_down_exps": "experts.down_proj", "ffn_gate_inp": "router", **more}  # fmt: skip
    return {ours: f"{name}.{theirs}" for ours, theirs in parts.items()}


_MAMBA = {"attn_norm": "norm", **mixer("mixer")}
_FALCON_H1 = {
    **mixer("mamba"),
    **feed_forward("feed_forward"),
    "ffn_norm": "pre_ff_layernorm",
}
LFM2 = {
    **feed_forward("feed_forward"),
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
LFM2_TRUNK = TRUNK | {"token_embd_norm": "model.norm"}
_GRANITE_HYBRID = {
    **mixer("mamba"),
    **feed_forward("block_sparse_moe", ffn_gate_inp="gate"),
    "ffn_gate": "shared_mlp.gate_proj",
    "ffn_up": "shared_mlp.up_proj",
    "ffn_down": "shared_mlp.down_proj",
    "ffn_gate_shexp": "shared_mlp.gate_proj",
    "ffn_up_shexp": "shared_mlp.up_proj",
    "ffn_down_shexp": "shared_mlp.down_proj",
}
_JAMBA = {
    **mixer("mamba", ssm_dt_norm="dt_layernorm", ssm_b_norm="b_layernorm",
             ssm_c_norm="c_layernorm"),
    **feed_forward("feed_forward"),
    "ffn_norm": "pre_ff_layernorm",
}  # fmt: skip
_LLAMA4 = feed_forward(
    "feed_forward",
    ffn_gate_shexp="shared_expert.gate_proj",
    ffn_up_shexp="shared_expert.up_proj",
    ffn_down_shexp="shared_expert.down_proj",
)
NEMOTRON_H = {
    **mixer("mixer"),
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
_BLOOM_TRUNK = TRUNK | {"token_embd_norm": "model.embed_norm"}


LAYOUTS: dict[str, FamilyNames] = {
    "llama": FamilyNames(block=BLOCK | MIXTRAL, turns_heads=True, has_letters=True),
    "qwen2": FamilyNames(block=BLOCK),
    "qwen2moe": FamilyNames(block=BLOCK | MOE),
    "qwen3": FamilyNames(block=BLOCK),
    "qwen3moe": FamilyNames(block=BLOCK | MOE),
    "phi3": FamilyNames(block=BLOCK | FUSED),
    "gemma": FamilyNames(block=BLOCK, adds_one=True),
    "gemma2": FamilyNames(block=BLOCK | FOUR_NORMS, adds_one=True),
    "gemma3": FamilyNames(block=BLOCK | FOUR_NORMS, adds_one=True),
    "gemma3n": FamilyNames(
        block=BLOCK | FOUR_NORMS | _GEMMA3N,
        own=_GEMMA3N_SCALE,
        trunk=TRUNK | _GEMMA3N_TRUNK,
        stacked=("altup_proj", "altup_unembd_proj"),
    ),
    "olmo2": FamilyNames(block=BLOCK | NORMS_BEHIND),
    "cohere2": FamilyNames(block=BLOCK),
    "glm4": FamilyNames(block=BLOCK | _GLM4),
    "glm4moe": FamilyNames(block=BLOCK | MOE | _GLM4_MOE | NEXT, own=CORRECTION),
    "gpt-oss": FamilyNames(block=BLOCK | MOE | _GPT_OSS),
    "gpt2": FamilyNames(
        block=_GPT2_BLOCK, trunk=_GPT2_TRUNK, blocks="transformer.h", is_input_first=True
    ),
    "deepseek2": FamilyNames(
        block=BLOCK | MOE | SHARED | LATENT | NEXT,
        own=CORRECTION,
        joined=LATENT_HALVES,
    ),
    "deepseek32": FamilyNames(
        block=BLOCK | MOE | SHARED | LATENT | INDEXER | NEXT,
        own=CORRECTION,
        joined=LATENT_HALVES,
    ),
    "mamba": FamilyNames(block=_MAMBA, own=vectors("mixer", has_steps=False)),
    "mamba2": FamilyNames(block=_MAMBA, own=vectors("mixer")),
    "falcon-h1": FamilyNames(
        block=BLOCK | _FALCON_H1,
        own=vectors("mamba") | {"ffn_norm": "pre_ff_layernorm.weight"},
    ),
    "lfm2": FamilyNames(block=BLOCK | LFM2, trunk=LFM2_TRUNK),
    "granitehybrid": FamilyNames(
        block=BLOCK | _GRANITE_HYBRID, own=vectors("mamba"), turns_heads=True
    ),
    "jamba": FamilyNames(block=BLOCK | _JAMBA, own=vectors("mamba", has_steps=False)),
    "llama4": FamilyNames(block=BLOCK | _LLAMA4),
    "qwen3next": FamilyNames(
        block=BLOCK | MOE | _QWEN3_NEXT, own=vectors("linear_attn"), adds_one=True
    ),
    "nemotron_h": FamilyNames(block=NEMOTRON_H, own=vectors("mixer")),
    "starcoder": FamilyNames(block=_GPT2_BLOCK, trunk=_GPT2_TRUNK, blocks="transformer.h"),
    "starcoder2": FamilyNames(block=BLOCK),
    "falcon": FamilyNames(block=BLOCK | QKV),
    "bloom": FamilyNames(block=BLOCK | QKV, trunk=_BLOOM_TRUNK),
    "mpt": FamilyNames(block=BLOCK | QKV),
    "gptneox": FamilyNames(block=BLOCK | QKV),
    "phi2": FamilyNames(block=BLOCK | QKV),
    "stablelm": FamilyNames(block=BLOCK),
    "nemotron": FamilyNames(block=BLOCK, adds_one=True),
    "granite": FamilyNames(block=BLOCK, turns_heads=True),
    "granitemoe": FamilyNames(block=BLOCK | MOE | SHARED, turns_heads=True),
    "olmo": FamilyNames(block=BLOCK, turns_heads=True),
    "olmoe": FamilyNames(block=BLOCK | MOE),
    "exaone": FamilyNames(block=BLOCK),
    "exaone4": FamilyNames(block=BLOCK | NORMS_BEHIND),
    "smollm3": FamilyNames(block=BLOCK, turns_heads=True),
    "arcee": FamilyNames(block=BLOCK, turns_heads=True),
    "internlm2": FamilyNames(block=BLOCK, turns_heads=True),
    "minicpm": FamilyNames(block=BLOCK, turns_heads=True),
    "hunyuan-dense": FamilyNames(block=BLOCK),
    "hunyuan-moe": FamilyNames(block=BLOCK | MOE | _HUNYUAN),
    "ernie4_5": FamilyNames(block=BLOCK),
    "ernie4_5-moe": FamilyNames(block=BLOCK | MOE | SHARED, own=_ERNIE),
    "seed_oss": FamilyNames(block=BLOCK | {"post_attention_norm": "post_attention_layernorm"}),
    "dots1": FamilyNames(block=BLOCK | MOE | SHARED, own=CORRECTION),
    "command-r": FamilyNames(block=BLOCK),
}
"""general.architecture -> names."""

FALCON_TWO_NORMS = FamilyNames(block=BLOCK | QKV | _FALCON_TWO_NORMS)
"""Falcon 40B and similar models: attention and MLP have separate norms."""
