"""Checkpoints under the class names of model cards: served as transformers computes the same model,
or refused with what is missing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail_plugins.published import config as published
from dovetail_plugins.published.layouts import BY_TYPE, REFUSED
from support.published_cases import CASES, SAME_AS, write_published
from support.tiny_configs import write_tiny
from support.verdicts import BACKED, NATIVE, verdict_of

CHATGLM: dict[str, Any] = {
    "architectures": ["ChatGLMModel"],
    "padded_vocab_size": 64,
    "num_layers": 2,
    "multi_query_group_num": 2,
    "ffn_hidden_size": 48,
}
BACKED_CASES = ("kimi_k25", "exaone_moe", "internvl_backed")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", [name for name in CASES if name not in SAME_AS])
def test_served_as_transformers_computes_the_same_model(tmp_path: Path, name: str) -> None:
    architecture, case = CASES[name]
    base = write_tiny(tmp_path / "base", case.model_type, **case.overrides)
    folder = write_published(base, tmp_path / "published", architecture, case)
    verdict = verdict_of(folder, reference=base)
    state = BACKED if name in BACKED_CASES else NATIVE
    assert (verdict.state, verdict.reason) == (state, "")


def test_every_published_class_has_a_case() -> None:
    names = {*published.PUBLISHED, *BY_TYPE}
    elsewhere = {"BailingMoeForCausalLM"}  # transformers lacks its type: test_uneven_families.py
    # Qwen Omni is served with images and sound: test_transformers_media.py
    elsewhere |= {name for name in names if "Omni" in name and name.startswith("Qwen")}
    assert names - elsewhere <= {architecture for architecture, _ in CASES.values()}


def _settings(folder: Path, **fields: Any) -> Path:
    """Write config.json alone: a small Llama's with these fields."""
    folder.mkdir()
    usual = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
    }
    (folder / "config.json").write_text(json.dumps({**usual, **fields}))
    return folder


def _class_of(folder: Path) -> str:
    return load_model_facts(folder).architecture


@pytest.mark.parametrize(
    ("architectures", "model_type", "served"),
    [
        (["MyForCausalLM"], "llama", "LlamaForCausalLM"),
        (["MyForCausalLM"], "qwen3_moe", "Qwen3MoeForCausalLM"),
        (["MyForCausalLM"], "internlm2", "InternLM2ForCausalLM"),
        (["My"], "llama", "LlamaForCausalLM"),
        (["MyModel"], "bert", "BertModel"),
        (["MyModel"], "qwen3", "Qwen3Model"),
        (["MyForSequenceClassification"], "qwen3", "Qwen3ForSequenceClassification"),
        (["MyForTokenClassification"], "bert", "BertForTokenClassification"),
        (["MyForConditionalGeneration"], "t5", "T5ForConditionalGeneration"),
        (["MyForCausalLM", "MistralForCausalLM"], "llama", "MistralForCausalLM"),
        (["MyForCausalLM", "AquilaForCausalLM"], "aquila", "LlamaForCausalLM"),
        (["LlamaForCausalLM", "MistralForCausalLM"], "mistral", "LlamaForCausalLM"),
        (["MyForCausalLM"], "exaone", "ExaoneForCausalLM"),
    ],
)
def test_the_first_class_that_is_known_or_the_model_types(
    tmp_path: Path, architectures: list[str], model_type: str, served: str
) -> None:
    more = {"architectures": architectures, "model_type": model_type}
    assert _class_of(_settings(tmp_path / "m", **more)) == served


def test_code_of_the_checkpoint_is_not_replaced_by_the_class_of_its_model_type(
    tmp_path: Path,
) -> None:
    code = {"AutoModelForCausalLM": "modeling_my.MyForCausalLM"}
    folder = _settings(tmp_path / "m", architectures=["MyForCausalLM"], auto_map=code)
    assert _class_of(folder) == "MyForCausalLM"


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLMEagle3", "EagleLlamaForCausalLM", "MedusaModel", "LlamaMTPModel"]
)
def test_heads_that_draft_for_another_model_stay(tmp_path: Path, name: str) -> None:
    assert _class_of(_settings(tmp_path / "m", architectures=[name])) == name


def test_an_auto_map_of_another_kind_is_not_code(tmp_path: Path) -> None:
    for odd in (3, "AutoModelForCausalLM", ["AutoModelForCausalLM"], None):
        folder = _settings(tmp_path / str(odd), architectures=["MyForCausalLM"], auto_map=odd)
        found = published.read_config(folder)
        assert found is not None and found["architectures"] == ["LlamaForCausalLM"]


def test_an_unknown_class_of_an_unknown_type_stays(tmp_path: Path) -> None:
    folder = _settings(tmp_path / "m", architectures=["MyForCausalLM"], model_type="mine")
    assert _class_of(folder) == "MyForCausalLM"


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_nothing_serves_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    folder = _settings(tmp_path / "m", architectures=[name], model_type="git")
    with pytest.raises(ConfigError) as caught:
        load_model_facts(folder)
    assert REFUSED[name] in str(caught.value)
    assert f"{folder}/config.json: architectures" == caught.value.where


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ({"architectures": ["InternVLChatModel"]}, "llm_config", "has none"),
        ({"architectures": ["InternVLChatModel"], "llm_config": 3}, "llm_config", "has none"),
        (
            {"architectures": ["Ovis2_5"], "llm_config": {"architectures": ["NoForCausalLM"]}},
            "llm_config.architectures",
            "NoForCausalLM, which is not served",
        ),
        (
            {"architectures": ["DeepseekVLV2ForCausalLM"], "language_config": {"use_mla": False}},
            "language_config.use_mla",
            "without latent attention",
        ),
        ({"architectures": ["MiniCPMV"], "version": 9.5}, "version", "9.5"),
        ({"architectures": ["MiniCPMV"]}, "version", "None"),
        ({"architectures": ["ChatGLMModel"]}, "padded_vocab_size", "None"),
        (
            {"architectures": ["ChatGLMModel"], "position_encoding_2d": True},
            "position_encoding_2d",
            "both directions",
        ),
        ({"architectures": ["ChatGLMModel"], "rmsnorm": False}, "rmsnorm", "rmsnorm True"),
        ({**CHATGLM, "rope_ratio": "x"}, "rope_ratio", "'x'"),
        ({**CHATGLM, "rope_ratio": float("nan")}, "rope_ratio", "nan"),
        (
            {"architectures": ["QWenLMHeadModel"], "intermediate_size": "x"},
            "intermediate_size",
            "'x'",
        ),
        ({"architectures": ["QWenLMHeadModel"], "rotary_pct": 0.5}, "rotary_pct", "0.5"),
        (
            {"architectures": ["BailingMoeV2ForCausalLM"], "score_function": "softmax"},
            "score_function",
            "softmax",
        ),
        ({"architectures": ["RWForCausalLM"], "n_layer": -1}, "n_layer", "-1"),
    ],
)
def test_settings_that_no_class_serves_name_the_file_and_the_key(
    tmp_path: Path, fields: dict[str, Any], where: str, what: str
) -> None:
    folder = _settings(tmp_path / "m", **fields)
    with pytest.raises(ConfigError, match="Fix: ") as caught:
        load_model_facts(folder)
    assert caught.value.where == f"{folder}/config.json: {where}"
    assert what in caught.value.what


def test_one_line_says_which_class_serves_and_what_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published._tell.cache_clear()
    text = {
        "model_type": "qwen2",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    more = {"architectures": ["InternVLChatModel"], "llm_config": text}
    with caplog.at_level(logging.INFO, published.__name__):
        folder = _settings(tmp_path / "m", **more)
        load_model_facts(folder)
        load_model_facts(folder)
    (line,) = caplog.messages
    assert line == (
        "InternVLChatModel is served by Qwen2ForCausalLM, its text part alone; images are not read"
    )


def test_modules_that_are_not_quantized_lose_the_prefix(tmp_path: Path) -> None:
    text = {
        "model_type": "qwen2",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    left = ["vision_model", "language_model.lm_head"]
    stored = {"quant_method": "awq", "bits": 4, "modules_to_not_convert": left}
    folder = _settings(
        tmp_path / "m",
        architectures=["InternVLChatModel"],
        llm_config=text,
        quantization_config=stored,
    )
    found = load_model_facts(folder).hf_config["quantization_config"]
    assert found["modules_to_not_convert"] == ["vision_model", "lm_head"]
