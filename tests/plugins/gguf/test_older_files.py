"""GGUF files of older converters: settings that they lack are those of their tensors, or of the
family, which is said once; experts one by one; llama files of models that have biases."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from plugins.gguf.test_experts import one_by_one, rewritten

from dovetail_plugins.gguf._config import read_config
from dovetail_plugins.gguf.reading.older import THETAS, say_once
from dovetail_plugins.gguf.vocabulary.assumed import assumed_kind
from dovetail_plugins.gguf.vocabulary.read import read_tokenizer
from dovetail_plugins.gguf.vocabulary.splits import KINDS
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_early import CASES as EARLY
from support.gguf_early import write_checkpoint
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
        read_tokenizer(tmp_path / "m.gguf")
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


FILLED = [f"token {i}" for i in range(160_000)]
DEEPSEEK = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
KNOWN: dict[str, tuple[str, list[str]]] = {
    "llama-bpe": ("llama", [*FILLED[:128_000], "<|begin_of_text|>"]),
    "deepseek-coder": ("llama", [DEEPSEEK, *FILLED[:32_000]]),
    "deepseek-llm": ("deepseek2", [DEEPSEEK, *FILLED[:102_000]]),
    "deepseek-v3": ("deepseek2", [DEEPSEEK, *FILLED[:128_000]]),
    "qwen2": ("qwen", []),
    "command-r": ("command-r", []),
    "starcoder": ("starcoder2", []),
    "stablelm2": ("stablelm", FILLED[:100_352]),
    "gpt-2": ("gptneox", []),
    "falcon": ("falcon", []),
    "bloom": ("bloom", []),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_pre_tokenizers_that_files_do_not_say(kind: str) -> None:
    architecture, tokens = KNOWN[kind]
    assert assumed_kind(architecture, tokens) == kind
    assert kind in KINDS


@pytest.mark.parametrize(
    ("name", "kind"), [("Qwen2ForCausalLM", "qwen2"), ("LlamaForCausalLM", "default")]
)
def test_the_pre_tokenizer_is_assumed_and_said(
    name: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", name)
    write_gguf(folder, tmp_path / "said.gguf", pre=kind)
    write_gguf(folder, tmp_path / "m.gguf", pre=None)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert read_tokenizer(tmp_path / "m.gguf") == read_tokenizer(tmp_path / "said.gguf")
    (line,) = (one.getMessage() for one in caplog.records if "tokenizer.ggml.pre" in one.message)
    assert f'"{kind}"' in line
    assert "m.gguf" in line
    assert ("--tokenizer" in line) == (kind == "default")
