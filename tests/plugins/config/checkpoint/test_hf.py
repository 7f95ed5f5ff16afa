"""Facts read from config.json against what transformers reads from the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.context_length import checkpoint_tokens, model_tokens
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError

pytest.importorskip("dovetail_plugins")

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "intermediate_size": 96}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", GROUPED),
    "gemma3_text": ("Gemma3ForCausalLM", GROUPED),
    "phi3": ("Phi3ForCausalLM", GROUPED | {"pad_token_id": 0}),
    "opt": ("OPTForCausalLM", SMALL | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "mixtral": ("MixtralForCausalLM", GROUPED),
    "qwen2_moe": ("Qwen2MoeForCausalLM", GROUPED),
    "qwen3_moe": ("Qwen3MoeForCausalLM", GROUPED),
    "falcon": ("FalconForCausalLM", SMALL | {"multi_query": True}),
}


def write(folder: Path, config: dict[str, Any], **generation: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def config_class(model_type: str) -> Any:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    return auto.CONFIG_MAPPING[model_type]


@pytest.mark.parametrize("model_type", CASES)
def test_facts_equal_transformers(model_type: str, tmp_path: Path) -> None:
    architecture, fields = CASES[model_type]
    config = config_class(model_type)(architectures=[architecture], **fields)
    config.save_pretrained(tmp_path)
    facts = load_model_facts(tmp_path, dtype="float32")
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    if model_type == "falcon":
        num_kv_heads = 1
    head_size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    assert facts.architecture == architecture
    assert facts.vocab_size == config.vocab_size == 96
    assert facts.hidden_size == config.hidden_size
    assert facts.num_layers == config.num_hidden_layers
    assert (facts.num_heads, facts.num_kv_heads) == (num_heads, num_kv_heads)
    assert facts.head_size == head_size
    if model_type != "falcon":
        assert facts.max_position_tokens == config.max_position_embeddings
    eos = config.eos_token_id
    assert facts.eos_token_ids == (() if eos is None else (eos,))
    assert facts.bos_token_id == config.bos_token_id


def test_what_a_file_leaves_out_is_the_class_default(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
    }
    facts = load_model_facts(write(tmp_path, raw))
    assert (facts.num_heads, facts.num_kv_heads, facts.head_size) == (8, 4, 256)
    assert facts.hidden_size == 2560
    assert facts.eos_token_ids == (1, 106)
    assert facts.hf_config["torch_dtype"] == "bfloat16"


def test_eos_ids_of_both_files_are_joined(tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA | {"eos_token_id": 7}, eos_token_id=[9, 7])
    assert load_model_facts(folder).eos_token_ids == (7, 9)


def test_overrides_win_and_merge(tmp_path: Path) -> None:
    config = LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    overrides = {"vocab_size": 50, "rope_scaling": {"factor": 4.0}}
    facts = load_model_facts(write(tmp_path, config), overrides=overrides)
    assert facts.vocab_size == 50
    assert facts.hf_config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None}, "architectures"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"hidden_size": 65}, "head_dim"),
        ({"model_type": "none", "vocab_size": None}, "vocab_size"),
        ({"text_model_id": "a/b"}, "its text model is another checkpoint, a/b"),  # Ultravox
    ],
)
def test_wrong_facts_name_file_and_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_model_facts(write(tmp_path, LLAMA | changes))
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_unreadable_files_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model_facts(tmp_path)


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model_facts(tmp_path)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({}, 128),
        ({"rope_scaling": None}, 128),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 512),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}, 320),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 100,
                }
            },
            400,
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 128),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, 128),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, 256),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 3.0}}}, 384),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            128,
        ),
    ],
)
def test_rope_scaling_stretches_the_context(
    rope: dict[str, Any], length: int, tmp_path: Path
) -> None:
    facts = load_model_facts(write(tmp_path, LLAMA | rope))
    assert checkpoint_tokens(facts) == length
    assert model_tokens(None, facts) == length
    assert model_tokens(length, facts) == length
    with pytest.raises(ConfigError, match=f"at most {length}"):
        model_tokens(length + 1, facts)
