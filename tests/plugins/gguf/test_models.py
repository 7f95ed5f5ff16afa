"""GGUF files of every family, written by the gguf package: logits are those of transformers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail_plugins.gguf.blocks.types import QUANTIZED as QUANTIZED_TYPES
from dovetail_testing.tiny.families import FAMILIES
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf
from support.gguf_models import loaded, logits_of, prompt, reference, transformers_model

pytest.importorskip("gguf")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
}
WINDOWS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "sliding_window": 6,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied-biases": (
        "LlamaForCausalLM",
        {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "llama3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen2moe": ("Qwen2MoeForCausalLM", {"mlp_only_layers": [], "norm_topk_prob": False}),
    "qwen3moe": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True}),
    "phi3": ("Phi3ForCausalLM", {}),
    "phi3-longrope": (
        "Phi3ForCausalLM",
        {"original_max_position_embeddings": 128, "rope_parameters": LONGROPE},
    ),
    "gemma": ("GemmaForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 16}),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
    ),
    "gemma3n": ("Gemma3nForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", WINDOWS),
    "cohere2": ("Cohere2ForCausalLM", WINDOWS),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 8, "attention_bias": True}),
    "glm4moe": (
        "Glm4MoeForCausalLM",
        {
            "num_hidden_layers": 3,
            "head_dim": 8,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "routed_scaling_factor": 1.5,
        },
    ),
    "gpt-oss": ("GptOssForCausalLM", {"swiglu_limit": 7.0}),
    "gpt2": ("GPT2LMHeadModel", {}),
}
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
QUANTIZED = ["F16", *QUANTIZED_TYPES]
QUANTIZED.remove("NVFP4")  # llama.cpp reads it from other checkpoints; nothing here writes it


@pytest.mark.any_isa  # names and shapes; what is stored is multiplied below
@pytest.mark.few_isa
@pytest.mark.parametrize("case", CASES)
def test_every_family(case: str, tmp_path: Path) -> None:
    name, changes = CASES[case]
    if name not in FAMILIES:
        pytest.skip(f"tests make no tiny checkpoint of {name}")
    folder = write_tiny_checkpoint(tmp_path / "hf", name, **changes)
    extra = {
        "llama3": {"rope_freqs.weight": llama3_divisors(8)},
        "phi3-longrope": {
            f"rope_factors_{word}.weight": np.array(LONGROPE[f"{word}_factor"], dtype=np.float32)
            for word in ("long", "short")
        },
    }
    write_gguf(folder, tmp_path / "model.gguf", extra=extra.get(case))
    tokens = prompt(40)
    (got,) = loaded(tmp_path / "model.gguf").forward([(0, tokens)])
    torch.testing.assert_close(
        got, logits_of(transformers_model(folder), tokens), rtol=0, atol=1e-4
    )


def llama3_divisors(size: int) -> Any:
    """Return what llama.cpp's converter computes from the rule's numbers."""
    plain = LLAMA3["rope_theta"] ** (np.arange(0, size, 2) / size)
    turns = LLAMA3["original_max_position_embeddings"] / (2 * np.pi * plain)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clip(0, 1)
    return (1 / (smooth + (1 - smooth) / LLAMA3["factor"])).astype(np.float32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return checkpoints whose rows hold whole blocks of 256."""
    root = tmp_path_factory.mktemp("wide")
    return {
        "llama": write_tiny_checkpoint(root / "llama", "LlamaForCausalLM", **WIDE),
        "deep": write_tiny_checkpoint(
            root / "deep", "LlamaForCausalLM", **{**WIDE, "num_hidden_layers": 4}
        ),
        "qwen3": write_tiny_checkpoint(
            root / "qwen3", "Qwen3ForCausalLM", **WIDE, tie_word_embeddings=True
        ),
        "qwen3moe": write_tiny_checkpoint(
            root / "moe", "Qwen3MoeForCausalLM", **{**WIDE, "moe_intermediate_size": 256}
        ),
        "gemma3n": write_tiny_checkpoint(
            root / "gemma3n",
            "Gemma3nForCausalLM",
            **{**WIDE, "intermediate_size": [512] * 4, "laurel_rank": 32},
            hidden_size_per_layer_input=32,
        ),
        "gpt-oss": write_tiny_checkpoint(
            root / "oss", "GptOssForCausalLM", **WIDE, swiglu_limit=7.0
        ),
    }


def test_all_types_in_one_model(wide: dict[str, Path], tmp_path: Path) -> None:
    """One type after the other, over the matrices of four layers."""
    given: dict[str, str] = {}

    def type_of(name: str) -> str:
        return given.setdefault(name, QUANTIZED[len(given) % len(QUANTIZED)])

    file, tokens = tmp_path / "model.gguf", prompt(24)
    meant = write_gguf(wide["deep"], file, type_of)
    assert set(given.values()) == set(QUANTIZED)
    right = reference(wide["deep"], meant, tokens, tmp_path / "meant")
    span = right.max() - right.min()
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * span


def test_activations_of_eight_bits(wide: dict[str, Path], tmp_path: Path) -> None:
    """The default: every matrix takes its inputs as int8 in groups, and errs by that alone."""
    cycle = itertools.cycle(("Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "TQ2_0"))
    file, tokens = tmp_path / "model.gguf", prompt(24)
    meant = write_gguf(wide["llama"], file, lambda name: next(cycle))
    right = reference(wide["llama"], meant, tokens, tmp_path / "meant")
    (got,) = loaded(file, activations="int8").forward([(0, tokens)])
    error = (got - right).abs()
    span = right.max() - right.min()
    assert error.square().mean().sqrt() <= 0.01 * span


MIXED = {
    "attn_v": "Q6_K",
    "attn_k": "F16",
    "ffn_up": "Q5_0",
    "ffn_up_exps": "Q6_K",
    "ffn_down": "Q6_K",
    "ffn_down_exps": "Q8_0",
    "output": "Q6_K",
    "token_embd": "Q3_K",
}


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3moe", "gpt-oss", "gemma3n"])
def test_mixed_types(family: str, wide: dict[str, Path], tmp_path: Path) -> None:
    """Fused matrices, experts, head and table each of their own type, as in real files."""

    def type_of(name: str) -> str:
        if family == "gpt-oss":  # as published
            return "MXFP4" if "_exps.weight" in name else "F32" if "_exps" in name else "Q8_0"
        if family == "gemma3n":  # two tables and numbered matrices, each of another type
            types = {"altup_proj": "Q4_0", "altup_unembd_proj": "F16", "token_embd": "Q6_K"}
            return "F32" if "coef" in name else types.get(name.split(".")[-2], "Q8_0")
        return MIXED.get(name.split(".")[-2], "Q4_K")

    file, tokens = tmp_path / "model.gguf", prompt(24)
    meant = write_gguf(wide[family], file, type_of)
    right = reference(wide[family], meant, tokens, tmp_path / "meant")
    model = loaded(file)
    (got,) = model.forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())
    held = sum(t.nbytes for t in (*model.module.parameters(), *model.module.buffers()))
    assert held <= 1.5 * file.stat().st_size  # 8-bit kernels hold the 3, 5 and 6 bits
