"""The config.json of models whose layers have a state, alone or in addition to attention, from a
GGUF file's settings. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.families.family import Family, usual_rows
from dovetail_plugins.gguf.families.layouts import LAYOUTS
from dovetail_plugins.gguf.families.parts import (
    gated,
    granite_scales,
    layer_norm_eps,
    num_layers,
    rope,
)
from dovetail_plugins.gguf.reading.metadata import Settings

FULL, LINEAR = "full_attention", "linear_attention"


def _rms_eps(settings: Settings) -> float:
    return settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-5


def _layer_types(settings: Settings, other: str) -> list[str]:
    """Return each layer's kind: those with key and value heads attend."""
    counts = settings.per_block(".attention.head_count_kv")[: num_layers(settings)]
    return [FULL if count else other for count in counts]


def _mamba(settings: Settings) -> dict[str, Any]:
    is_normed = bool(settings.find(".ssm.dt_b_c_rms", bool))
    name, kind = ("FalconMamba", "falcon_mamba") if is_normed else ("Mamba", "mamba")
    return {
        "model_type": kind,
        "architectures": [f"{name}ForCausalLM"],
        "intermediate_size": settings.number(".ssm.inner_size"),
        "state_size": settings.number(".ssm.state_size"),
        "conv_kernel": settings.number(".ssm.conv_kernel"),
        "time_step_rank": settings.number(".ssm.time_step_rank"),
        "layer_norm_epsilon": _rms_eps(settings),
        "use_bias": settings.has("ssm_in.bias"),
        "use_conv_bias": settings.has("ssm_conv1d.bias"),
    }


def _mamba2(settings: Settings) -> dict[str, Any]:
    heads, inner = settings.number(".ssm.time_step_rank"), settings.number(".ssm.inner_size")
    return {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "num_heads": heads,
        "head_dim": inner // heads,
        "expand": inner / settings.number(".embedding_length"),
        "state_size": settings.number(".ssm.state_size"),
        "conv_kernel": settings.number(".ssm.conv_kernel"),
        "n_groups": settings.number(".ssm.group_count"),
        "layer_norm_epsilon": _rms_eps(settings),
        "use_bias": settings.has("ssm_in.bias"),
        "use_conv_bias": settings.has("ssm_conv1d.bias"),
    }


def _mixer(settings: Settings) -> dict[str, Any]:
    """Return the sizes of a hybrid's mixers, of Mamba 1 or 2."""
    inner = settings.number(".ssm.inner_size")
    return {
        "mamba_d_state": settings.number(".ssm.state_size"),
        "mamba_d_conv": settings.number(".ssm.conv_kernel"),
        "mamba_expand": inner / settings.number(".embedding_length"),
        "mamba_conv_bias": settings.has("ssm_conv1d.bias"),
        "mamba_proj_bias": settings.has("ssm_in.bias"),
    }


def _mixer2(settings: Settings) -> dict[str, Any]:
    """Return the sizes of a hybrid's mixers of Mamba 2."""
    heads = settings.number(".ssm.time_step_rank")
    return {
        **_mixer(settings),
        "mamba_n_heads": heads,
        "mamba_d_head": settings.number(".ssm.inner_size") // heads,
        "mamba_n_groups": settings.number(".ssm.group_count"),
    }


def _falcon_h1(settings: Settings) -> dict[str, Any]:
    # The multipliers are in the file's matrices.
    more = {
        **_mixer2(settings),
        "mamba_d_ssm": settings.number(".ssm.inner_size"),
        "mamba_rms_norm": settings.has("ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "attention_bias": settings.has("attn_q.bias"),
        "mlp_bias": settings.has("ffn_up.bias"),
        "projectors_bias": settings.has("ssm_out.bias"),
    }
    return gated(settings, "falcon_h1", "FalconH1ForCausalLM", **more)


def lfm2(settings: Settings) -> dict[str, Any]:
    """Return the settings of LFM2."""
    more = {
        "layer_types": _layer_types(settings, "conv"),
        "conv_L_cache": settings.number(".shortconv.l_cache"),
        "conv_bias": settings.has("shortconv.conv.bias"),
        "norm_eps": _rms_eps(settings),
        "block_auto_adjust_ff_dim": False,
    }
    return gated(settings, "lfm2", "Lfm2ForCausalLM", **more)


def _granitehybrid(settings: Settings) -> dict[str, Any]:
    if settings.find(".rope.scaling.finetuned", bool):
        raise ConfigError(
            "this granitehybrid file rotates its heads, as Bamba's do; Granite's alone are read.",
            where=str(settings.model.path),
            fix="use Bamba's checkpoint in safetensors.",
        )
    experts = settings.find(".expert_count", int) or 0
    inner = settings.number(".feed_forward_length")
    shared = settings.find(".expert_shared_feed_forward_length", int)
    more = {
        **granite_scales(settings),
        **_mixer2(settings),
        "layer_types": _layer_types(settings, LINEAR),
        "position_embedding_type": "nope",
        "num_local_experts": experts,
        "num_experts_per_tok": settings.find(".expert_used_count", int) or 0,
        "shared_intermediate_size": shared or inner,
        "attention_bias": settings.has("attn_q.bias"),
    }
    return gated(settings, "granitemoehybrid", "GraniteMoeHybridForCausalLM", **more)


def _jamba(settings: Settings) -> dict[str, Any]:
    attends = [i for i, heads in enumerate(settings.per_block(".attention.head_count_kv")) if heads]
    sparse = settings.blocks_with("ffn_gate_inp.weight")
    more = {
        **_mixer(settings),
        **_period(settings, "attn_layer", attends),
        **_period(settings, "expert_layer", sparse),
        "mamba_dt_rank": settings.number(".ssm.time_step_rank"),
        "num_experts": settings.number(".expert_count") if sparse else 1,
        "num_experts_per_tok": settings.number(".expert_used_count") if sparse else 1,
    }
    return gated(settings, "jamba", "JambaForCausalLM", **more)


def _period(settings: Settings, name: str, layers: list[int]) -> dict[str, int]:
    """Return the period and the offset that mean these layers. Raises: ConfigError"""
    count = settings.number(".block_count")
    first = layers[0] if layers else count
    period = layers[1] - first if len(layers) > 1 else count + 1
    if layers != list(range(first, count, period)):
        raise ConfigError(
            f"layers {layers} are not one in every {period}, as Jamba's are.",
            where=str(settings.model.path),
        )
    return {f"{name}_period": period, f"{name}_offset": first}


def delta_rule(settings: Settings) -> dict[str, Any]:
    """Return which layers have Qwen's gated delta rule, and its sizes."""
    heads, inner = settings.number(".ssm.time_step_rank"), settings.number(".ssm.inner_size")
    mixing = set(settings.blocks_with("ssm_a"))
    return {
        "layer_types": [LINEAR if i in mixing else FULL for i in range(num_layers(settings))],
        "linear_num_key_heads": settings.number(".ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": settings.number(".ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": settings.number(".ssm.conv_kernel"),
    }


def qwen_experts(settings: Settings) -> dict[str, Any]:
    """Return the settings of Qwen's experts, which follow every layer, one of them shared."""
    return {
        "num_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "shared_expert_intermediate_size": settings.number(".expert_shared_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen3next(settings: Settings) -> dict[str, Any]:
    more = delta_rule(settings) | qwen_experts(settings)
    return gated(settings, "qwen3_next", "Qwen3NextForCausalLM", **more)


def nemotron_h(settings: Settings) -> dict[str, Any]:
    """Return the settings of Nemotron-H."""
    count = num_layers(settings)
    heads = settings.per_block(".attention.head_count_kv")[:count]
    inner = settings.per_block(".feed_forward_length")[:count]
    kinds = [FULL if h else "mlp" if f else LINEAR for h, f in zip(heads, inner, strict=True)]
    rank = settings.number(".ssm.time_step_rank")
    eps = settings.find(".attention.layer_norm_rms_epsilon", float) or layer_norm_eps(settings)
    return {
        "model_type": "nemotron_h",
        "architectures": ["NemotronHForCausalLM"],
        "layers_block_type": kinds,
        "intermediate_size": max(inner) or None,
        "mlp_hidden_act": "relu2",
        "mlp_bias": settings.has("ffn_up.bias"),
        "mamba_num_heads": rank,
        "mamba_head_dim": settings.number(".ssm.inner_size") // rank,
        "ssm_state_size": settings.number(".ssm.state_size"),
        "n_groups": settings.number(".ssm.group_count"),
        "conv_kernel": settings.number(".ssm.conv_kernel"),
        "use_conv_bias": settings.has("ssm_conv1d.bias"),
        "use_bias": settings.has("ssm_in.bias"),
        "layer_norm_epsilon": eps,
        **rope(settings),
    }


def _granite_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    return usual_rows(config) | {"ffn_up.weight": config["shared_intermediate_size"]}


def gated_query_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """A gate of the attention's outputs has as many rows as the queries, behind them."""
    queries = config["num_attention_heads"] * config["head_dim"]
    return usual_rows(config) | {"attn_q.weight": 2 * queries}


_CONFIGS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "falcon-h1": _falcon_h1,
    "lfm2": lfm2,
    "granitehybrid": _granitehybrid,
    "jamba": _jamba,
    "qwen3next": _qwen3next,
    "nemotron_h": nemotron_h,
}
"""general.architecture -> its config.json."""
_MORE: Mapping[str, dict[str, Any]] = {
    "mamba": {"has_heads": False},
    "mamba2": {"has_heads": False},
    "granitehybrid": {"rows": _granite_rows},
    "qwen3next": {"rows": gated_query_rows},
}
FAMILIES = {
    name: Family(config=config, names=LAYOUTS[name], **_MORE.get(name, {}))
    for name, config in _CONFIGS.items()
}
"""general.architecture -> how files of it are read."""
