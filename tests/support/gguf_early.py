"""GGUF files of early families: matrices that converters of some join, and cases for tests.

Shares nothing with the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_testing.tiny.families import COMMON, FAMILIES
from dovetail_testing.tiny.models import randomize, write_tiny_checkpoint, write_tiny_tokenizer

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

_QKV: dict[str, tuple[str, ...]] = {
    "attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
}
FUSED: dict[str, dict[str, tuple[str, ...]]] = {
    "qwen": _QKV,
    "codeshell": _QKV,
    "chatglm": _QKV,
    "bitnet": {
        "attn_sub_norm": ("self_attn.attn_sub_norm",),
        "ffn_sub_norm": ("mlp.ffn_sub_norm",),
    },
}
"""Architecture -> GGUF's name of a tensor -> the checkpoint's tensors that it joins, row by row."""


def _parts(architecture: str, names: Mapping[str, Array]) -> dict[str, list[str]]:
    """Return GGUF's names of the joined tensors, and those of each one's parts."""
    found: dict[str, list[str]] = {}
    for joined, parts in FUSED.get(architecture, {}).items():
        for name in names:
            if f".{parts[0]}." in name:
                block = name.split(".layers.")[1].split(".")[0]
                leaf = name.rpartition(".")[2]
                own = [name.replace(parts[0], part) for part in parts]
                found[f"blk.{block}.{joined}.{leaf}"] = own
    return found


def fused(architecture: str, weights: Arrays) -> Arrays:
    """Return a checkpoint's weights with the matrices joined that the architecture's files join."""
    made = dict(weights)
    for name, parts in _parts(architecture, weights).items():
        made[name] = np.concatenate([made.pop(part) for part in parts])
    return made


def split(architecture: str, meant: Arrays, weights: Mapping[str, Array]) -> Arrays:
    """Return what `fused` gave under the checkpoint's names."""
    made = dict(meant)
    for name, parts in _parts(architecture, weights).items():
        ends = np.cumsum([len(weights[part]) for part in parts])[:-1]
        made |= dict(zip(parts, np.split(made.pop(name), ends), strict=True))
    return made


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 1.0,
    "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
}
SCALED = LONGROPE | {"short_mscale": 1.25, "long_mscale": 1.25}
FACTORS = {
    f"rope_factors_{word}.weight": np.array(LONGROPE[f"{word}_factor"], dtype=np.float32)
    for word in ("long", "short")
}
WIDE = {"hidden_size": 256, "intermediate_size": 256}
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
           "v_head_dim": 12}  # fmt: skip
_DBRX = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "vocab_size": 512}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny checkpoint and its file: the class of transformers, changes of its config, sizes at
    which rows are whole blocks of 256; GGUF's architecture if it is not the class's, settings that
    are not the usual ones (a function: of the config), and further tensors."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    wide: Mapping[str, Any] = field(default_factory=lambda: WIDE)
    architecture: str | None = None
    adders: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Array] = field(default_factory=dict)


_LATENT_SIZES: dict[str, Any] = {
    "rope_dimension_count": lambda config: config["qk_rope_head_dim"],
    "key_length": lambda config: config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
    "value_length": None,
    "kv_lora_rank": lambda config: config["kv_lora_rank"],
    "q_lora_rank": lambda config: config["q_lora_rank"],
}
_NO_SIZES = {"key_length": None, "value_length": None}
CASES: dict[str, Case] = {
    "phimoe": Case(name="PhimoeForCausalLM", fields={"router_jitter_noise": 0.01}),
    "phimoe-longrope": Case(
        name="PhimoeForCausalLM",
        fields={"router_jitter_noise": 0.01, "rope_parameters": SCALED, "lm_head_bias": False},
        adders={"rope_scaling_orig_ctx_len": 128, "rope_scaling_attn_factors": 1.25, **_NO_SIZES},
        extra=FACTORS,
    ),
    "gptj": Case(
        name="GPTJForCausalLM",
        wide={"n_embd": 256, "n_inner": 512, "rotary_dim": 16},
        adders={"rope_dimension_count": lambda config: config["rotary_dim"]},
    ),
    "baichuan": Case(name="LlamaForCausalLM", architecture="baichuan", adders=_NO_SIZES),
    "minicpm3": Case(
        name="MiniCPM3ForCausalLM",
        fields={"num_key_value_heads": 4, "scale_emb": 12, "scale_depth": 1.4},
        wide={**WIDE, "q_lora_rank": 256, "kv_lora_rank": 256, "v_head_dim": 16},
        adders=_LATENT_SIZES,
    ),
    "minicpm3-longrope": Case(
        name="MiniCPM3ForCausalLM",
        fields={"num_key_value_heads": 4, "rope_parameters": LONGROPE},
        adders=_LATENT_SIZES,
        extra=FACTORS,
    ),
    "bitnet": Case(
        name="BitNetForCausalLM", fields={"hidden_act": "silu", "tie_word_embeddings": True}
    ),
    "chatglm": Case(
        name="GlmForCausalLM",
        fields={"head_dim": 8, "attention_bias": True},
        wide={**WIDE, "head_dim": 64},
        adders=_NO_SIZES,
    ),
    "chatglm-edge": Case(
        name="GlmForCausalLM",
        fields={"head_dim": 8, "attention_bias": False},
        wide={**WIDE, "head_dim": 64},
    ),
    "qwen": Case(
        name="Qwen2ForCausalLM",
        fields={"num_key_value_heads": 4, "tie_word_embeddings": False},
        architecture="qwen",
        adders={
            **_NO_SIZES,
            "head_count_kv": None,
            "feed_forward_length": lambda config: 2 * config["intermediate_size"],
        },
    ),
    "dbrx": Case(
        name="DbrxForCausalLM",
        fields={
            **_DBRX,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 500.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        wide={
            "d_model": 256,
            "ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "orion": Case(
        name="StableLmForCausalLM",
        fields={"partial_rotary_factor": 1.0},
        architecture="orion",
        adders=_NO_SIZES,
    ),
    "xverse": Case(name="LlamaForCausalLM", architecture="xverse", adders=_NO_SIZES),
    "pangu-embedded": Case(
        name="LlamaForCausalLM", fields={"attention_bias": True}, architecture="pangu-embedded"
    ),
    "maincoder": Case(
        name="HunYuanDenseV1ForCausalLM",
        fields={"attention_bias": False},
        wide={**WIDE, "head_dim": 64},
        architecture="maincoder",
    ),
    "codeshell": Case(
        name="Starcoder2ForCausalLM", fields={"sliding_window": None}, architecture="codeshell"
    ),
    "jais2": Case(name="Jais2ForCausalLM"),
}


def write_checkpoint(case: Case, folder: Path, *, is_wide: bool = False) -> Path:
    """Write a case's random checkpoint; return the folder. `is_wide`: of the wide sizes."""
    fields = {**case.fields, **(case.wide if is_wide else {})}
    if case.name in FAMILIES:
        return write_tiny_checkpoint(folder, case.name, **fields)
    import transformers

    others = {
        "MiniCPM3ForCausalLM": ("minicpm3", COMMON | _LATENT),
        "BitNetForCausalLM": ("bitnet", COMMON),
        "DbrxForCausalLM": ("dbrx", {}),
    }
    kind, usual = others[case.name]
    config = transformers.AutoConfig.for_model(kind, **{**usual, **fields})
    model = getattr(transformers, case.name)(config)
    randomize(model, seed=len(kind))
    model.save_pretrained(folder)
    return write_tiny_tokenizer(folder)
