"""What tests write of the GGUF families of 2025 and 2026: cases, settings, changed tensors.

Shares nothing with the reader. The tables extend those of `gguf_cases`, `gguf_files`,
`gguf_settings` and `gguf_families`, which say what each has. Source: the converters of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Config = Mapping[str, Any]

WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
DELTA = {"linear_num_value_heads": 6}
WIDE_DELTA = {
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 32,
    "linear_key_head_dim": 32,
}
GEMMA4_MOE = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
}
MAMBA_AND_MOE = ["linear_attention", "moe", "full_attention", "moe"]
NEMOTRON_WIDE = {
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 256,
    "mamba_head_dim": 64,
}
MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LATENT = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "q_lora_rank": 256,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "head_dim": 16,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen35": ("Qwen3_5ForCausalLM", DELTA, {**WIDE, **WIDE_DELTA}),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", DELTA, {**WIDE, **EXPERTS, **WIDE_DELTA}),
    "minimax-m2": ("MiniMaxM2ForCausalLM", {}, WIDE),
    "lfm2moe": ("Lfm2MoeForCausalLM", {}, {**WIDE, **EXPERTS}),
    "nemotron_h_moe": (
        "NemotronHForCausalLM",
        {"layers_block_type": MAMBA_AND_MOE},
        {**WIDE, **NEMOTRON_WIDE, "moe_latent_size": 256},
    ),
    "nemotron_h_moe-plain": (
        "NemotronHForCausalLM",
        {"layers_block_type": MAMBA_AND_MOE, "moe_latent_size": None},
        {**WIDE, **NEMOTRON_WIDE},
    ),
    "mistral3": ("MistralForCausalLM", {"sliding_window": None}, WIDE),
    "ministral3": (
        "Ministral3ForCausalLM",
        {"rope_parameters": MINISTRAL_ROPE},
        {**WIDE, "num_key_value_heads": 4},
    ),
    "glm-dsa": ("GlmMoeDsaForCausalLM", {}, {**LATENT, **EXPERTS}),
    "kimi-linear": (
        "KimiLinearForCausalLM",
        {},
        {**LATENT, **EXPERTS, "q_lora_rank": None, "linear_head_dim": 32},
    ),
    "apertus": ("ApertusForCausalLM", {"rope_parameters": PLAIN_ROPE}, WIDE),
    "exaone-moe": ("ExaoneMoeForCausalLM", {}, {**WIDE, **EXPERTS}),
    "afmoe": ("AfmoeForCausalLM", {}, {**WIDE, **EXPERTS}),
    "mimo2": ("MiMoV2FlashForCausalLM", {}, {**WIDE, **EXPERTS, "head_dim": 96, "v_head_dim": 64}),
    "bailingmoe2": (
        "Glm4MoeForCausalLM",
        {"head_dim": 8, "attention_bias": False},
        {**WIDE, **EXPERTS, "attention_bias": False},
    ),
    "qwen2vl": ("Qwen2ForCausalLM", {}, WIDE),
    "qwen3vl": ("Qwen3ForCausalLM", {}, WIDE),
    "qwen3vlmoe": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True}, {**WIDE, **EXPERTS}),
    "paddleocr": ("LlamaForCausalLM", {"head_dim": 8}, WIDE),
    "hunyuan_vl": ("HunYuanDenseV1ForCausalLM", {}, WIDE),
    "gemma4": ("Gemma4ForCausalLM", {}, {**WIDE, "global_head_dim": 128}),
    "gemma4-moe": (
        "Gemma4ForCausalLM",
        {**GEMMA4_MOE, "moe_intermediate_size": 16},
        {**WIDE, "global_head_dim": 128, "moe_intermediate_size": 256},
    ),
}
_FEW = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ONE_SLIDES = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "Ministral3ForCausalLM": ("ministral3", {"head_dim": 8}),
    "ExaoneMoeForCausalLM": ("exaone_moe", {**_FEW, **_ONE_SLIDES}),
    "AfmoeForCausalLM": (
        "afmoe",
        {**_FEW, **_ONE_SLIDES, "num_dense_layers": 1, "mup_enabled": True},
    ),
    "MiMoV2FlashForCausalLM": (
        "mimo_v2_flash",
        {**_FEW, "n_routed_experts": 4, "head_dim": 12, "v_head_dim": 8, "sliding_window": 6},
    ),
}
"""Classes that are served over transformers -> model type, and fields of a tiny config."""
ARCHITECTURES = {
    "Gemma4ForCausalLM": "gemma4",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "Ministral3ForCausalLM": "mistral3",
    "GlmMoeDsaForCausalLM": "glm-dsa",
    "KimiLinearForCausalLM": "kimi-linear",
    "ApertusForCausalLM": "apertus",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "AfmoeForCausalLM": "afmoe",
    "MiMoV2FlashForCausalLM": "mimo2",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
}
OF_CASE = {
    **{name: name for name in ("mistral3", "bailingmoe2", "qwen2vl", "qwen3vl", "qwen3vlmoe")},
    **{name: name for name in ("hunyuan_vl", "paddleocr")},
    "nemotron_h_moe": "nemotron_h_moe",
    "nemotron_h_moe-plain": "nemotron_h_moe",
}
"""GGUF's names in cases of classes that have several."""
NOT_SAID: dict[str, set[str]] = {
    "mimo2": {"rope_parameters"},
    "nemotron_h_moe": {"intermediate_size", "max_position_embeddings"},
    "nemotron_h_moe-plain": {"intermediate_size", "max_position_embeddings"},
}
LOOSE_CASES = ("qwen35", "qwen35moe")


def _qwen35(config: Config) -> dict[str, Any]:
    size = config["linear_value_head_dim"] * config["linear_num_value_heads"]
    return {
        "ssm_conv_kernel": config["linear_conv_kernel_dim"],
        "ssm_state_size": config["linear_key_head_dim"],
        "ssm_group_count": config["linear_num_key_heads"],
        "ssm_time_step_rank": config["linear_num_value_heads"],
        "ssm_inner_size": size,
        "full_attention_interval": config["layer_types"].index("full_attention") + 1,
        "rope_dimension_sections": _in_three(config["head_dim"] // 8),
    }


def _gemma4(config: Config) -> dict[str, Any]:
    kinds, own = config["layer_types"], config["per_layer_config"]
    slides = [kind == "sliding_attention" for kind in kinds]
    usual, inner = config["num_key_value_heads"], config["intermediate_size"]
    heads = [own.get(str(i), {}).get("num_key_value_heads", usual) for i in range(len(kinds))]
    shared = config["num_kv_shared_layers"]
    wide = [inner] * (len(kinds) - shared) + [2 * inner] * shared
    full = next(iter(own.values()))["head_dim"]
    return {
        "sliding_window_pattern": slides,
        "head_count_kv": heads,
        "shared_kv_layers": shared,
        "feed_forward_length": wide if config["use_double_wide_mlp"] else inner,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope_freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        **dict.fromkeys(("key_length", "value_length", "rope_dimension_count"), full),
        **dict.fromkeys(("key_length_swa", "value_length_swa", "rope_dimension_count_swa"),
                        config["head_dim"]),
        "expert_used_count": config.get("top_k_experts"),
    }  # fmt: skip


def _minimax_m2(config: Config) -> dict[str, Any]:
    return {
        "expert_feed_forward_length": config["intermediate_size"],
        "rope_dimension_count": config["rotary_dim"],
    }


def _kv_heads(config: Config, count: int) -> list[int]:
    return [count * (kind == "full_attention") for kind in config["layer_types"]]


def _lfm2moe(config: Config) -> dict[str, Any]:
    return {
        "head_count_kv": _kv_heads(config, config["num_key_value_heads"]),
        "shortconv_l_cache": config["conv_L_cache"],
        "layer_norm_rms_eps": config["norm_eps"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_gating_func": _sigmoid(),
    }


def _sigmoid() -> Any:
    import gguf

    return gguf.ExpertGatingFuncType.SIGMOID


def _nemotron_h_moe(config: Config) -> dict[str, Any]:
    kinds = config["layers_block_type"]
    inner = config["moe_intermediate_size"]
    return {
        "ssm_conv_kernel": config["conv_kernel"],
        "ssm_state_size": config["ssm_state_size"],
        "ssm_time_step_rank": config["mamba_num_heads"],
        "ssm_group_count": config["n_groups"],
        "ssm_inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "head_count_kv": [
            config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds
        ],
        "feed_forward_length": [inner * (kind == "moe") for kind in kinds],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "moe_latent_size": config["moe_latent_size"],
        "context_length": 1 << 20,
        "rope_freq_base": None,
    }


def _ministral3(config: Config) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return {
        "attn_temperature_scale": rope["llama_4_scaling_beta"],
        "rope_scaling_yarn_log_mul": rope["mscale_all_dim"],
        "rope_scaling_yarn_beta_fast": rope["beta_fast"],
        "rope_scaling_yarn_beta_slow": rope["beta_slow"],
    }


def _latent(config: Config) -> dict[str, Any]:
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        "head_count_kv": 1,
        "key_length": rank + turned,
        "value_length": rank,
        "key_length_mla": config["qk_nope_head_dim"] + turned,
        "value_length_mla": config["v_head_dim"],
        "kv_lora_rank": rank,
        "q_lora_rank": config["q_lora_rank"],
        "rope_dimension_count": turned,
        "expert_gating_func": _sigmoid(),
        "leading_dense_block_count": config["first_k_dense_replace"],
    }


def _glm_dsa(config: Config) -> dict[str, Any]:
    return {
        **_latent(config),
        "indexer_head_count": config["index_n_heads"],
        "indexer_key_length": config["index_head_dim"],
        "indexer_top_k": config["index_topk"],
    }


def _kimi_linear(config: Config) -> dict[str, Any]:
    return {
        **_latent(config),
        "value_length": None,
        "head_count_kv": _kv_heads(config, 1),
        "context_length": config["model_max_length"],
        "ssm_conv_kernel": config["linear_conv_kernel_dim"],
        "kda_head_dim": config["linear_head_dim"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "rope_freq_base": None,
    }


def _slides(config: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def _exaone_moe(config: Config) -> dict[str, Any]:
    return {
        "sliding_window_pattern": _slides(config),
        "expert_shared_count": config["num_shared_experts"],
        "expert_gating_func": _sigmoid(),
        "nextn_predict_layers": 0,
    }


def _afmoe(config: Config) -> dict[str, Any]:
    return {
        "sliding_window_pattern": _slides(config),
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["route_scale"],
        "expert_gating_func": _sigmoid(),
    }


def _mimo2(config: Config) -> dict[str, Any]:
    ropes, heads = config["rope_parameters"], config["num_key_value_heads"]
    full = ropes["full_attention"]["partial_rotary_factor"]
    return {
        "sliding_window_pattern": [int(one) for one in _slides(config)],
        "head_count_kv": [heads * (1 + one) for one in _slides(config)],
        "value_length": config["v_head_dim"],
        "rope_dimension_count": int(config["head_dim"] * full),
        "rope_freq_base_swa": ropes["sliding_attention"]["rope_theta"],
    }


def _sections(config: Config) -> dict[str, Any]:
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {"rope_dimension_sections": _in_three(size // 2)}


def _in_three(pairs: int) -> list[int]:
    """Return sections for positions in time, height and width."""
    return [pairs - pairs // 4 * 2, pairs // 4, pairs // 4, 0]


SETTINGS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35,
    "gemma4_text": _gemma4,
    "minimax_m2": _minimax_m2,
    "lfm2_moe": _lfm2moe,
    "ministral3": _ministral3,
    "glm_moe_dsa": _glm_dsa,
    "kimi_linear": _kimi_linear,
    "nemotron_h_moe": _nemotron_h_moe,
    "exaone_moe": _exaone_moe,
    "afmoe": _afmoe,
    "mimo_v2_flash": _mimo2,
    **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe", "paddleocr"), _sections),
}
"""By model type or by GGUF's name."""


JOINING = {
    "eh_proj": "eh_proj",
    "enorm": "enorm",
    "hnorm": "hnorm",
    "shared_head.norm": "shared_head_norm",
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}
"""What joins a drafting layer to the model -> GGUF's name of it."""


def drafting_name(config: Config, name: str) -> str | None:
    """Return the name of what joins a drafting block to the model, in architectures of which the
    package does not know it."""
    owner = name.rpartition(".")[0]
    found = next((ours for theirs, ours in JOINING.items() if owner.endswith(theirs)), None)
    if found is None:
        return None
    block = config["num_hidden_layers"] if name.startswith("mtp.") else name.split(".")[2]
    return f"blk.{block}.nextn.{found}.weight"


def with_tail(name: str) -> tuple[str, ...]:
    """Return the name of a tensor that GGUF calls a weight or a bias, and the checkpoint not."""
    tails = {"layer_scalar": ".weight", "expert_bias": ".bias", "sink_bias": ".weight"}
    return tuple(f"{name}{tail}" for end, tail in tails.items() if name.endswith(end))


def other_names(config: Config, name: str) -> tuple[str, ...]:
    """Return names under which the package may know a tensor of the checkpoint."""
    experts = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
    plain = name.replace("block_sparse_moe", "mlp")
    layer = f"model.layers.{config.get('num_hidden_layers')}."
    return name.removeprefix("model."), plain, experts, name.replace("mtp.layers.0.", layer)


def with_joined(config: Config, weights: Arrays) -> Arrays:
    """Return weights with queries, keys and values as one matrix, of a family that has such."""
    if config["gguf"] != "bailingmoe2":
        return weights
    found = {name: one for name, one in weights.items() if "self_attn.q_proj" not in name}
    for name in [name for name in weights if "self_attn.q_proj" in name]:
        parts = [name.replace("q_proj", f"{part}_proj") for part in "qkv"]
        block, leaf = name.split(".")[2], name.rpartition(".")[2]
        rows = [found.pop(part, weights[name]) for part in parts]
        found[f"blk.{block}.attn_qkv.{leaf}"] = np.concatenate(rows)
    return found


def without_joined(config: Config, meant: Arrays, weights: Arrays) -> Arrays:
    """Return the way back from `with_joined`."""
    found = {name: one for name, one in meant.items() if ".attn_qkv." not in name}
    for name in set(meant) - set(found):
        _, block, _, leaf = name.split(".")
        parts = [f"model.layers.{block}.self_attn.{part}_proj.{leaf}" for part in "qkv"]
        ends = np.cumsum([len(weights[part]) for part in parts])[:-1]
        found |= dict(zip(parts, np.split(meant[name], ends), strict=True))
    return found


def as_settings(weights: Mapping[str, Array]) -> Arrays:
    """Return the tensors whose numbers are settings in GGUF."""
    return {name: one for name, one in weights.items() if ".act_fn." in name}


def lists_of(weights: Mapping[str, Array]) -> dict[str, list[float]]:
    """Return such tensors as settings: a number for each block."""
    found: dict[str, list[float]] = {}
    for name in sorted(weights, key=lambda one: int(one.split(".layers.")[1].split(".")[0])):
        key = f"xielu.{name.rpartition('.')[2]}"
        found.setdefault(key, []).append(float(weights[name].item()))
    return found


def extra_of(config: Config) -> Arrays:
    """Return tensors that the file has in addition to the checkpoint's."""
    if config["model_type"] != "gemma4_text":
        return {}
    full = config["rope_parameters"]["full_attention"]
    pairs = next(iter(config["per_layer_config"].values()))["head_dim"] // 2
    turned = int(pairs * full["partial_rotary_factor"])
    divisors = [1.0] * turned + [1e30] * (pairs - turned)
    return {"rope_freqs.weight": np.array(divisors, dtype=np.float32)}


def _tiled(config: Config, values: Array, *, undo: bool = False) -> Array:
    """Return rows of all value heads in ggml's order: the first of every key head, then the
    second."""
    keys = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // keys
    shape = (each, keys, -1) if undo else (keys, each, -1)
    return values.reshape(shape).swapaxes(0, 1).reshape(values.shape)


def _heads(start: bool = False) -> tuple[Any, Any]:
    """Return how rows of value heads are reordered and put back. `start`: those of queries and keys
    precede them, in their own order."""

    def turned(config: Config, values: Array, *, undo: bool) -> Array:
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        count = keys if start else 0
        made = _tiled(config, values[count:], undo=undo)
        return np.concatenate([values[:count], made])

    return _same(turned)


def _columns() -> tuple[Any, Any]:
    def turned(config: Config, values: Array, *, undo: bool) -> Array:
        return _tiled(config, np.ascontiguousarray(values.T), undo=undo).T

    return _same(turned)


def _same(turned: Callable[..., Array]) -> tuple[Any, Any]:
    """Return a change of one tensor under the same name, and the way back."""

    def cut(config: Config, name: str, values: Array) -> Arrays:
        return {name: turned(config, values, undo=False)}

    def join(config: Config, values: Array) -> Array:
        return turned(config, values, undo=True)

    return cut, join


def _named(name: str) -> tuple[Any, Any]:
    """Return a change of a tensor's name alone, in a block."""

    def cut(config: Config, theirs: str, values: Array) -> Arrays:
        return {f"blk.{theirs.split('.layers.')[1].split('.')[0]}.{name}": values}

    def join(config: Config, values: Array) -> Array:
        return values

    return cut, join


_QWEN35 = (
    *((word, *_heads()) for word in ("A_log", "dt_bias", "in_proj_z", "in_proj_a", "in_proj_b")),
    ("in_proj_qkv", *_heads(start=True)),
    ("linear_attn.conv1d", *_heads(start=True)),
    ("linear_attn.out_proj", *_columns()),
)
_GEMMA4 = (
    ("experts.gate_up_proj", *_named("ffn_gate_up_exps.weight")),
    ("experts.down_proj", *_named("ffn_down_exps.weight")),
    ("router.scale", *_named("ffn_gate_inp.scale")),
    ("router.per_expert_scale", *_named("ffn_down_exps.scale")),
)


def _latent_cut(config: Config, name: str, values: Array) -> Arrays:
    heads = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
    keys, rest = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
    return {
        name.replace("kv_b_proj", "k_b_proj"): keys.swapaxes(1, 2),
        name.replace("kv_b_proj", "v_b_proj"): rest,
    }


def _latent_join(config: Config, keys: Array, rest: Array) -> Array:
    whole: Array = np.concatenate([keys.swapaxes(1, 2), rest], axis=1)
    return whole.reshape(-1, whole.shape[-1])


def _filters() -> tuple[Any, Any]:
    """Return how filters of channels are stored: [C, 1, K] as [1, C, 1, K]."""

    def cut(config: Config, name: str, values: Array) -> Arrays:
        return {name: values.reshape(1, -1, 1, values.shape[-1])}

    def join(config: Config, values: Array) -> Array:
        return values.reshape(-1, 1, values.shape[-1])

    return cut, join


LATENT_CUT = (("kv_b_proj", _latent_cut, _latent_join),)
CUTS: dict[str, Any] = {
    "glm_moe_dsa": LATENT_CUT,
    "kimi_linear": (*LATENT_CUT, ("_conv1d", *_filters())),
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35,
    "gemma4_text": _GEMMA4,
}
