"""The config.json of models with experts whose layers also have a state: LFM2, Nemotron 3, Kimi
Linear. Imports no torch.

Source: lfm2.py, nemotron.py and kimi_linear.py in
https://github.com/ggml-org/llama.cpp/tree/master/conversion
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail_plugins.gguf.families.experts import latent_sizes
from dovetail_plugins.gguf.families.family import STATES, Family, FamilyNames
from dovetail_plugins.gguf.families.layouts import (
    BLOCK,
    LATENT,
    LATENT_HALVES,
    LFM2,
    LFM2_TRUNK,
    NEMOTRON_H,
    feed_forward,
    vectors,
)
from dovetail_plugins.gguf.families.parts import gated, grouped_experts, num_layers
from dovetail_plugins.gguf.families.recurrent import FULL, LINEAR, lfm2, nemotron_h
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings

if TYPE_CHECKING:
    import torch

_ROUTER = "ffn_gate_inp.weight"
_LFM2_MOE = {**LFM2, **feed_forward("feed_forward", ffn_gate_inp="gate")}
_NEMOTRON_MOE = {
    **NEMOTRON_H,
    "ffn_gate_inp": "mixer.gate",
    "ffn_up_exps": "mixer.experts.up_proj",
    "ffn_down_exps": "mixer.experts.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
_CONVS = {f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in "qkv"}
_KIMI = {
    **feed_forward(
        "mlp",
        ffn_gate_inp="gate",
        ffn_gate_shexp="shared_experts.gate_proj",
        ffn_up_shexp="shared_experts.up_proj",
        ffn_down_shexp="shared_experts.down_proj",
    ),
    **_CONVS,
    "ssm_f_a": "self_attn.f_a_proj",
    "ssm_f_b": "self_attn.f_b_proj",
    "ssm_g_a": "self_attn.g_a_proj",
    "ssm_g_b": "self_attn.g_b_proj",
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
}


def _lfm2moe(settings: Settings) -> dict[str, Any]:
    return lfm2(settings) | {
        "model_type": "lfm2_moe",
        "architectures": ["Lfm2MoeForCausalLM"],
        "num_dense_layers": settings.find(".leading_dense_block_count", int) or 0,
        "num_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "use_expert_bias": settings.has("exp_probs_b.bias"),
        "norm_topk_prob": settings.find(".expert_weights_norm", bool) is not False,
        "routed_scaling_factor": settings.find(".expert_weights_scale", float) or 1.0,
    }


def _nemotron_h_moe(settings: Settings) -> dict[str, Any]:
    config, sparse = nemotron_h(settings), set(settings.blocks_with(_ROUTER))
    kinds = config["layers_block_type"]
    experts, dense = grouped_experts(settings), settings.first("ffn_up.weight")
    del experts["first_k_dense_replace"]
    return config | {
        **experts,
        "intermediate_size": dense.shape[0] if dense else config["intermediate_size"],
        "layers_block_type": ["moe" if i in sparse else kind for i, kind in enumerate(kinds)],
        "moe_shared_expert_intermediate_size": settings.number(
            ".expert_shared_feed_forward_length"
        ),
        "moe_latent_size": settings.find(".moe_latent_size", int),
    }


def _kimi_linear(settings: Settings) -> dict[str, Any]:
    size, mixing = settings.number(".kda.head_dim"), set(settings.blocks_with("ssm_a"))
    experts = grouped_experts(settings)
    count = num_layers(settings)
    more = {
        **latent_sizes(settings),
        "model_max_length": settings.number(".context_length"),
        "layer_types": [LINEAR if i in mixing else FULL for i in range(count)],
        "linear_head_dim": size,
        "linear_num_heads": settings.number(".attention.head_count"),
        "linear_conv_kernel_dim": settings.number(".ssm.conv_kernel"),
        "num_experts": experts["n_routed_experts"],
        "num_experts_per_token": experts["num_experts_per_tok"],
        "num_shared_experts": experts["n_shared_experts"],
        "num_expert_group": experts["n_group"],
        "moe_renormalize": experts["norm_topk_prob"],
        **{
            name: experts[name]
            for name in (
                "moe_intermediate_size",
                "first_k_dense_replace",
                "routed_scaling_factor",
                "topk_group",
            )
        },
    }
    return gated(settings, "kimi_linear", "KimiLinearForCausalLM", **more)


def _channels(model: GgufModel, tensor: torch.Tensor) -> torch.Tensor:
    """Return a convolution with one filter a channel. Shapes: [1, C, 1, K] -> [C, 1, K]"""
    return tensor.reshape(-1, 1, tensor.shape[-1])


def _kimi_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows of the matrices that are the same in both kinds of layers."""
    inner = config["linear_num_heads"] * config["linear_head_dim"]
    return {"ssm_f_b.weight": inner, "ssm_g_b.weight": inner, "ssm_dt.bias": inner,
            "ssm_beta.weight": config["linear_num_heads"]}  # fmt: skip


_CONFIGS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "lfm2moe": _lfm2moe,
    "nemotron_h_moe": _nemotron_h_moe,
    "kimi-linear": _kimi_linear,
}
"""general.architecture -> its config.json."""
_NAMES = {
    "lfm2moe": FamilyNames(
        block=BLOCK | _LFM2_MOE,
        own={"exp_probs_b.bias": "feed_forward.expert_bias"},
        trunk=LFM2_TRUNK,
    ),
    "nemotron_h_moe": FamilyNames(
        block=_NEMOTRON_MOE,
        own=vectors("mixer") | {"exp_probs_b.bias": "mixer.gate.e_score_correction_bias"},
    ),
    "kimi-linear": FamilyNames(
        block=BLOCK | LATENT | _KIMI,
        own={
            "ssm_a": "self_attn.A_log",
            "ssm_dt.bias": "self_attn.dt_bias",
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        },
        joined=LATENT_HALVES,
        undo={**STATES, **dict.fromkeys(_CONVS, _channels)},
    ),
}
_MORE: Mapping[str, dict[str, Any]] = {"kimi-linear": {"rows": _kimi_rows}}
FAMILIES = {
    name: Family(config=config, names=_NAMES[name], **_MORE.get(name, {}))
    for name, config in _CONFIGS.items()
}
"""general.architecture -> how files of it are read."""
