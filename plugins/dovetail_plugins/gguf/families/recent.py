"""The config.json of decoders of 2025 and 2026 without states. Imports no torch.

Source: the modules named after them in
https://github.com/ggml-org/llama.cpp/tree/master/conversion
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail_plugins.gguf.families.experts import deepseek, indexed
from dovetail_plugins.gguf.families.family import Family, FamilyNames
from dovetail_plugins.gguf.families.layouts import BLOCK, LAYOUTS, feed_forward
from dovetail_plugins.gguf.families.parts import common, gated, num_layers
from dovetail_plugins.gguf.reading.metadata import Settings


def _mistral3(settings: Settings) -> dict[str, Any]:
    beta = settings.find(".attention.temperature_scale", float)
    window = settings.find(".attention.sliding_window", int) or None
    if not beta:
        return gated(settings, "mistral", "MistralForCausalLM", sliding_window=window)
    config = gated(settings, "ministral3", "Ministral3ForCausalLM", sliding_window=window)
    weight = settings.find(".rope.scaling.yarn_log_multiplier", float)
    both = {} if weight is None else {"mscale": weight, "mscale_all_dim": weight}
    scaling = {**(config["rope_scaling"] or {"rope_type": "default"}), **both}
    return config | {"rope_scaling": {**scaling, "llama_4_scaling_beta": beta}}


def _minimax_m2(settings: Settings) -> dict[str, Any]:
    size = settings.find(".rope.dimension_count", int) or common(settings)["head_dim"]
    more = {
        "intermediate_size": settings.number(".expert_feed_forward_length"),
        "num_local_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "rotary_dim": size,
    }
    return gated(settings, "minimax_m2", "MiniMaxM2ForCausalLM", **more)


def _glm_dsa(settings: Settings) -> dict[str, Any]:
    own = set(settings.blocks_with("indexer.attn_k.weight"))
    return {
        **deepseek(settings, "glm_moe_dsa", "GlmMoeDsaForCausalLM"),
        **indexed(settings),
        "indexer_types": ["full" if i in own else "shared" for i in range(num_layers(settings))],
    }


def _apertus(settings: Settings) -> dict[str, Any]:
    names = ("alpha_p", "alpha_n", "beta", "eps")
    more = {
        "hidden_act": "xielu",
        "xielu": {name: settings.per_layer(f"xielu.{name}") for name in names},
    }
    return gated(settings, "apertus", "ApertusForCausalLM", **more)


_CONFIGS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "mistral3": _mistral3,
    "minimax-m2": _minimax_m2,
    "glm-dsa": _glm_dsa,
    "apertus": _apertus,
}
"""general.architecture -> its config.json."""
_NAMES = {
    "mistral3": LAYOUTS["llama"],
    "minimax-m2": FamilyNames(
        block=BLOCK | feed_forward("block_sparse_moe", ffn_gate_inp="gate"),
        own={"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
        has_letters=True,
    ),
    "glm-dsa": LAYOUTS["deepseek32"],
    "apertus": FamilyNames(block=BLOCK),
}
FAMILIES = {name: Family(config=config, names=_NAMES[name]) for name, config in _CONFIGS.items()}
"""general.architecture -> how files of it are read."""
