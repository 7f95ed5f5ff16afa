"""The config.json of decoders of 2025 and 2026 without states. Imports no torch.

Source: the modules named after them in
https://github.com/ggml-org/llama.cpp/tree/master/conversion
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.families.dense import FAMILIES as DENSE
from dovetail_plugins.gguf.families.experts import FAMILIES as SPARSE
from dovetail_plugins.gguf.families.experts import SIGMOID, deepseek, indexed
from dovetail_plugins.gguf.families.family import Family, FamilyNames, usual_rows
from dovetail_plugins.gguf.families.layouts import (
    BLOCK,
    CORRECTION,
    LAYOUTS,
    MOE,
    NEXT,
    QKV,
    SHARED,
    feed_forward,
)
from dovetail_plugins.gguf.families.parts import (
    common,
    drafting,
    gated,
    grouped_experts,
    kinds,
    num_layers,
    only,
    with_sections,
)
from dovetail_plugins.gguf.reading.metadata import Settings

_FULL, _SLIDING = "full_attention", "sliding_attention"
_DECODERS = {**DENSE, **SPARSE}
_LING = {"layer_output_norm": "shared_head.norm"}
_AFMOE = {
    "attn_gate": "self_attn.gate_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_mlp_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_gate_inp": "mlp.router.gate",
}


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


def _exaone_moe(settings: Settings) -> dict[str, Any]:
    experts = grouped_experts(settings)
    more = {
        "sliding_window": settings.number(".attention.sliding_window"),
        **kinds(settings, every=4),
        **_sparse(settings),
        "num_experts": experts.pop("n_routed_experts"),
        "num_shared_experts": experts.pop("n_shared_experts"),
        **experts,
    }
    return gated(settings, "exaone_moe", "ExaoneMoeForCausalLM", **more)


def _sparse(settings: Settings) -> dict[str, Any]:
    """Return which layers have experts."""
    sparse = set(settings.blocks_with("ffn_gate_inp.weight"))
    layers = range(num_layers(settings))
    return {"mlp_layer_types": ["sparse" if i in sparse else "dense" for i in layers]}


def _afmoe(settings: Settings) -> dict[str, Any]:
    experts = grouped_experts(settings)
    only(settings, ".expert_weights_norm", (None, True))
    only(settings, ".expert_gating_func", (None, SIGMOID))
    more = {
        "sliding_window": settings.number(".attention.sliding_window"),
        **kinds(settings, every=4),
        "mup_enabled": True,
        "num_experts": experts["n_routed_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "num_shared_experts": experts["n_shared_experts"],
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "num_dense_layers": experts["first_k_dense_replace"],
        "route_scale": experts["routed_scaling_factor"],
    }
    return gated(settings, "afmoe", "AfmoeForCausalLM", **more)


def _mimo2(settings: Settings) -> dict[str, Any]:
    types = kinds(settings, every=6)["layer_types"]
    size, turned = common(settings)["head_dim"], settings.number(".rope.dimension_count")
    counts = settings.per_block(".attention.head_count_kv")
    full = next((n for n, kind in zip(counts, types, strict=False) if kind == _FULL), counts[0])
    sliding = {n for n, kind in zip(counts, types, strict=False) if kind != _FULL}
    if sliding - {2 * full}:
        raise ConfigError(
            f"sliding layers have {sorted(sliding)} key heads, and MiMo's have twice the {full} of "
            "the others.",
            where=str(settings.model.path),
        )
    thetas = {_FULL: (".rope.freq_base", 5e6), _SLIDING: (".rope.freq_base_swa", 1e4)}
    scale = settings.find(".attention.value_scale", float)
    experts = grouped_experts(settings)
    del experts["first_k_dense_replace"], experts["n_shared_experts"]
    return {
        **gated(settings, "mimo_v2_flash", "MiMoV2FlashForCausalLM"),
        **_sparse(settings),
        **experts,
        "layer_types": types,
        "num_key_value_heads": full,
        "v_head_dim": settings.number(".attention.value_length"),
        "sliding_window": settings.number(".attention.sliding_window"),
        "rope_parameters": {
            kind: {
                "rope_type": "default",
                "rope_theta": settings.find(name, float) or usual,
                "partial_rotary_factor": turned / size,
            }
            for kind, (name, usual) in thetas.items()
        },
        **({} if scale is None else {"attention_value_scale": scale}),
    }


def _mimo2_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows that all layers have: those of keys are of two sizes."""
    return {**usual_rows(config), "attn_k.weight": None}


def _bailingmoe2(settings: Settings) -> dict[str, Any]:
    """Ling 2 and Sarvam's mixtures compute what GLM-4.5 does."""
    only(settings, ".expert_gating_func", (None, SIGMOID))
    more = {
        **drafting(settings),
        **grouped_experts(settings),
        "attention_bias": False,
        "use_qk_norm": True,
    }
    return gated(settings, "glm4_moe", "Glm4MoeForCausalLM", **more)


def _text_part(name: str, *, is_interleaved: bool) -> Callable[[Settings], dict[str, Any]]:
    """Return the settings of a family whose positions have sections for images: of a text all
    sections have the same, so that the text model is the family's own."""

    def config(settings: Settings) -> dict[str, Any]:
        found = _DECODERS[name].config(settings)
        return found | {"rope_scaling": with_sections(settings, is_interleaved=is_interleaved)}

    return config


def _paddleocr(settings: Settings) -> dict[str, Any]:
    """The text part of PaddleOCR-VL: ERNIE's, with heads that are turned as Llama's are."""
    scaling = with_sections(settings, is_interleaved=False)
    return gated(settings, "llama", "LlamaForCausalLM", rope_scaling=scaling)


_CONFIGS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "mistral3": _mistral3,
    "minimax-m2": _minimax_m2,
    "glm-dsa": _glm_dsa,
    "apertus": _apertus,
    "exaone-moe": _exaone_moe,
    "afmoe": _afmoe,
    "mimo2": _mimo2,
    "bailingmoe2": _bailingmoe2,
    "qwen2vl": _text_part("qwen2", is_interleaved=False),
    "qwen3vl": _text_part("qwen3", is_interleaved=True),
    "qwen3vlmoe": _text_part("qwen3moe", is_interleaved=True),
    "paddleocr": _paddleocr,
    "hunyuan_vl": DENSE["hunyuan-dense"].config,
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
    "exaone-moe": FamilyNames(
        block=BLOCK | MOE | SHARED, own={"exp_probs_b.bias": "mlp.e_score_correction_bias"}
    ),
    "afmoe": FamilyNames(
        block=BLOCK | MOE | SHARED | _AFMOE, own={"exp_probs_b.bias": "mlp.expert_bias"}
    ),
    "mimo2": FamilyNames(
        block=BLOCK | MOE,
        own=CORRECTION | {"attn_sinks.weight": "self_attn.attention_sink_bias"},
    ),
    "bailingmoe2": FamilyNames(block=BLOCK | MOE | SHARED | QKV | NEXT | _LING, own=CORRECTION),
    "qwen2vl": LAYOUTS["qwen2"],
    "qwen3vl": LAYOUTS["qwen3"],
    "qwen3vlmoe": LAYOUTS["qwen3moe"],
    "paddleocr": FamilyNames(block=BLOCK),
    "hunyuan_vl": LAYOUTS["hunyuan-dense"],
}
_MORE: Mapping[str, dict[str, Any]] = {"mimo2": {"rows": _mimo2_rows}}
FAMILIES = {
    name: Family(config=config, names=_NAMES[name], **_MORE.get(name, {}))
    for name, config in _CONFIGS.items()
}
"""general.architecture -> how files of it are read."""
