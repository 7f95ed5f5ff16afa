"""GGUF files of older converters: settings that they lack are those of their tensors, or of the
family, which is said once; experts one by one; llama files of models that have biases."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plugins.gguf.test_experts import one_by_one, rewritten

from dovetail.errors import ConfigError
from dovetail_plugins.gguf._config import read_config
from dovetail_plugins.gguf.reading.older import THETAS, say_once
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_early import CASES as EARLY
from support.gguf_early import Case, write_checkpoint
from support.gguf_files import write_gguf
from support.gguf_models import loaded, logits_of, prompt, transformers_model
from support.uneven_llamas import mixture

pytest.importorskip("gguf")


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    say_once.cache_clear()


def assert_same(file: Path, model: Any) -> None:
    tokens = prompt(40)
    (got,) = loaded(file).forward([(0, tokens)])
    torch.testing.assert_close(got, logits_of(model, tokens), rtol=1e-5, atol=1e-4)


NO_HEAD_SIZE = {"key_length": None, "value_length": None}
NO_BASE = {"rope_freq_base": None}
NO_EXPERT_SIZE = {"expert_feed_forward_length": None, "expert_shared_feed_forward_length": None}


def base(number: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": number}}


BASE = "rope_theta is not in the file;"
GEMMA3 = {
    "query_pre_attn_scalar": 16,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
LACKING: dict[str, tuple[str, dict[str, Any], dict[str, None], str]] = {
    "size of heads": ("LlamaForCausalLM", {"head_dim": 16}, NO_HEAD_SIZE, "key_length"),
    "usual size of heads": ("LlamaForCausalLM", {"head_dim": 8}, NO_HEAD_SIZE, ""),
    "Llama's base": (
        "LlamaForCausalLM",
        base(1e4),
        NO_BASE,
        f"{BASE} 10000",
    ),
    "Mixtral's base": (
        "MixtralForCausalLM",
        base(1e6),
        NO_BASE,
        f"{BASE} 1e+06",
    ),
    "OLMo 3's base": (
        "Olmo3ForCausalLM",
        base(5e5),
        NO_BASE,
        f"{BASE} 500000",
    ),
    "Gemma 3's base": (
        "Gemma3ForCausalLM",
        GEMMA3,
        NO_BASE,
        f"{BASE} 1e+06",
    ),
    "no base without rotation": ("MptForCausalLM", {}, NO_BASE, ""),
    "norms' epsilon": (
        "LlamaForCausalLM",
        {"rms_norm_eps": 1e-6},
        {"layer_norm_rms_eps": None},
        "rms_norm_eps is not in the file; 1e-06",
    ),
    "sizes of experts": (
        "Qwen2MoeForCausalLM",
        {"mlp_only_layers": [], "norm_topk_prob": False},
        NO_EXPERT_SIZE,
        "expert_shared_feed_forward_length",
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_a_file_lacks(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name, fields, lacks, said = LACKING[case]
    folder = write_tiny_checkpoint(tmp_path / "hf", name, **fields)
    write_gguf(folder, tmp_path / "m.gguf", adders=lacks)
    with caplog.at_level(logging.INFO):
        assert_same(tmp_path / "m.gguf", transformers_model(folder))
        read_config(tmp_path / "m.gguf")
    lines = [one.getMessage() for one in caplog.records if str(tmp_path) in one.getMessage()]
    assert len([line for line in lines if said in line]) == (1 if said else 0), lines


def test_a_whole_file_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "Qwen2MoeForCausalLM", mlp_only_layers=[])
    write_gguf(folder, tmp_path / "m.gguf")
    with caplog.at_level(logging.INFO):
        read_config(tmp_path / "m.gguf")
    assert not [one for one in caplog.records if one.name.startswith("dovetail_plugins.gguf")]


def test_bases_are_those_of_transformers() -> None:
    from transformers import CONFIG_MAPPING

    for model_type, number in THETAS.items():
        assert CONFIG_MAPPING[model_type].default_theta == number, model_type


def test_qwen2_moe_with_experts_one_by_one_and_no_sizes(tmp_path: Path) -> None:
    fields = {"mlp_only_layers": [], "norm_topk_prob": False}
    folder = write_tiny_checkpoint(tmp_path / "hf", "Qwen2MoeForCausalLM", **fields)
    write_gguf(folder, tmp_path / "now.gguf", adders=NO_EXPERT_SIZE)
    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", one_by_one)
    assert_same(file, transformers_model(folder))


def test_phi_moe_with_experts_one_by_one(tmp_path: Path) -> None:
    folder = write_checkpoint(EARLY["phimoe"], tmp_path / "hf")
    write_gguf(folder, tmp_path / "now.gguf")
    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", one_by_one)
    assert_same(file, transformers_model(folder))


def test_deepseek_moe_with_experts_one_by_one(tmp_path: Path) -> None:
    model = mixture(tmp_path / "hf")
    write_gguf(tmp_path / "hf", tmp_path / "now.gguf", adders={"expert_weights_norm": None})
    assert_same(rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", one_by_one), model)


BIASED: dict[str, tuple[str, dict[str, Any]]] = {
    "of all matrices, as in Granite Code": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True},
    ),
    "of attention, as in InternLM 1": ("LlamaForCausalLM", {"attention_bias": True}),
    "of queries, keys and values, as in Qwen": ("Qwen2ForCausalLM", {}),
}


@pytest.mark.parametrize("case", BIASED)
def test_biases_in_llamas_layout(case: str, tmp_path: Path) -> None:
    name, fields = BIASED[case]
    folder = write_tiny_checkpoint(tmp_path / "hf", name, **fields)
    write_gguf(folder, tmp_path / "m.gguf", architecture="llama")
    assert_same(tmp_path / "m.gguf", transformers_model(folder))


def test_a_parameter_that_is_not_read_is_named(tmp_path: Path) -> None:
    """Scales of whole matrices, which files of a checkpoint in ternary numbers may have."""
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    scale = {"blk.0.attn_q.scale": np.ones(1, dtype=np.float32)}
    write_gguf(folder, tmp_path / "m.gguf", extra=scale)
    with pytest.raises(ConfigError, match=r"blk\.0\.attn_q\.scale"):
        loaded(tmp_path / "m.gguf")


ACTIVATIONS: dict[str, tuple[int, dict[str, str], str]] = {
    "the first ones": (512, {}, "silu"),
    "Microsoft's, by their vocabulary": (128_256, {}, "relu2"),
    "stated": (512, {"bitnet.hidden_activation": "relu2"}, "relu2"),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_bitnets_activation(case: str, tmp_path: Path) -> None:
    tokens, settings, act = ACTIVATIONS[case]
    fields = {"hidden_act": act, "vocab_size": tokens, "tie_word_embeddings": True}
    folder = write_checkpoint(Case(name="BitNetForCausalLM", fields=fields), tmp_path / "hf")
    write_gguf(folder, tmp_path / "m.gguf", settings=settings)
    assert_same(tmp_path / "m.gguf", transformers_model(folder))
