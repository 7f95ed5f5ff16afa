"""What a model is run for, and how it pools: by its class, by files beside it, by flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.model.architectures import registered, stem
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec, PoolingSpec

pytest.importorskip("dovetail_plugins")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
GENERATES = {**LLAMA, "architectures": ["LlamaForCausalLM"]}
CLASSIFIES = {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 3}
VECTORS, CLASSES = ("embed", "token_embed"), ("classify", "token_classify")


def spec_of(folder: Path, config: dict[str, Any], **fields: Any) -> EngineSpec:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    small = {"load_format": "dummy", "kv_cache_memory_bytes": 2**24}
    return resolve(Config.from_fields({"model": str(folder), **small, **fields}))


def pooling_of(folder: Path, config: dict[str, Any], **fields: Any) -> PoolingSpec:
    found = spec_of(folder, config, **fields).run.pooling
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "fields", "head", "tasks"),
    [
        (GENERATES, {}, "logits", None),
        (GENERATES, {"runner": "pooling"}, "", VECTORS),
        (GENERATES, {"convert": "embed"}, "", VECTORS),
        (GENERATES, {"task": "embedding"}, "", VECTORS),
        (GENERATES, {"convert": "classify"}, "classes", CLASSES),
        (GENERATES, {"convert": "reward"}, "token_classes", CLASSES[1:]),
        (GENERATES, {"task": "reward"}, "token_classes", CLASSES[1:]),
        ({**LLAMA, "architectures": ["LlamaModel"]}, {}, "", VECTORS),
        (CLASSIFIES, {}, "classes", CLASSES),
        (CLASSIFIES, {"task": "score"}, "classes", CLASSES),
        (GENERATES, {"task": "score"}, "", VECTORS),
        (CLASSIFIES, {"convert": "embed"}, "", VECTORS),
        (CLASSIFIES, {"task": "classify"}, "classes", CLASSES),
        (GENERATES, {"runner": "pooling", "pooler_config": {"pooling_type": "ALL"}}, "",
         VECTORS[::-1]),
        (GENERATES, {"convert": "reward", "pooler_config": {"pooling_type": "LAST"}},
         "token_classes", CLASSES),
    ],
)  # fmt: skip
def test_what_a_model_is_run_for(
    config: dict[str, Any],
    fields: dict[str, Any],
    head: str,
    tasks: tuple[str, ...] | None,
    tmp_path: Path,
) -> None:
    run = spec_of(tmp_path, config, **fields).run
    assert run.model.head == head
    assert (run.pooling.tasks if run.pooling is not None else None) == tasks


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (CLASSIFIES, "LlamaForSequenceClassification does not generate"),
        ({**LLAMA, "architectures": ["LlamaModel"]}, "LlamaModel does not generate"),
    ],
)
def test_what_cannot_generate(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        spec_of(tmp_path, config, runner="generate")


@pytest.mark.parametrize(
    ("config", "key", "value", "field", "found"),
    [
        (GENERATES, "normalize", False, "is_normalized", False),
        (GENERATES, "dimensions", 12, "dimensions", 12),
        (GENERATES, "step_tag_id", 7, "step_token_id", 7),
        (GENERATES, "enable_chunked_processing", True, "splits_long", True),
        (CLASSIFIES, "softmax", False, "activation", "identity"),
        (CLASSIFIES, "use_activation", False, "activation", "identity"),
        (CLASSIFIES, "activation", "sigmoid", "activation", "sigmoid"),
        (CLASSIFIES, "returned_token_ids", [0, 2], "returned_token_ids", (0, 2)),
    ],
)
@pytest.mark.parametrize("flag", ["pooler_config", "override_pooler_config"])
def test_pooler_config(
    config: dict[str, Any], key: str, value: Any, field: str, found: Any, flag: str, tmp_path: Path
) -> None:
    usual = pooling_of(tmp_path, config, runner="pooling")
    assert getattr(usual, field) != found
    asked = pooling_of(tmp_path, config, runner="pooling", **{flag: {key: value}})
    assert getattr(asked, field) == found


@pytest.mark.parametrize("name", ["MEAN", "CLS", "LAST", "max"])
def test_poolers_by_name(name: str, tmp_path: Path) -> None:
    found = pooling_of(tmp_path, GENERATES, runner="pooling", pooler_config={"pooling_type": name})
    assert (found.pooler.name, found.token_pooler.name) == (name.lower(), "all")
    assert bool(found.prefix_tasks) is (name == "LAST")


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.Identity"}, "identity"),
    ],
)
def test_activations(changes: dict[str, Any], activation: str, tmp_path: Path) -> None:
    assert pooling_of(tmp_path, {**CLASSIFIES, **changes}).activation == activation
    bare = pooling_of(tmp_path, {**CLASSIFIES, **changes}, pooler_config={"softmax": False})
    assert bare.activation == "identity"


def test_an_activation_that_there_is_not(tmp_path: Path) -> None:
    config = {**CLASSIFIES, "sentence_transformers": {"activation_fn": "torch.nn.Tanhshrink"}}
    with pytest.raises(ConfigError, match=r'the activation "torch\.nn\.Tanhshrink" is not'):
        spec_of(tmp_path, config)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"classifier_from_token": "yes"}, "must be a list of words"),
        ({"classifier_from_token": ["a"], "is_original_qwen3_reranker": True}, "names 1 tokens"),
        ({"classifier_from_token": ["a"], "method": "guess"}, 'there is no "guess"'),
    ],
)
def test_classes_that_are_tokens(overrides: dict[str, Any], told: str, tmp_path: Path) -> None:
    architecture = {"architectures": ["LlamaForSequenceClassification"]}
    vocabulary = {"model": {"vocab": {"a": 3}}, "added_tokens": [{"content": "<b>", "id": 9}]}
    found = spec_of(
        tmp_path, GENERATES, hf_overrides={**architecture, "num_labels": 2}
    ).run.model.class_tokens
    assert found == ()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(vocabulary))
    words = {**architecture, "classifier_from_token": ["<b>", "a"]}
    tokenizer = {"tokenizer": str(tmp_path / "words")}
    model = spec_of(tmp_path, GENERATES, hf_overrides=words, **tokenizer).run.model
    assert (model.class_tokens, model.hf_config["num_labels"]) == ((9, 3), 2)
    with pytest.raises(ConfigError, match=told):
        spec_of(tmp_path, GENERATES, hf_overrides={**architecture, **overrides}, **tokenizer)


@pytest.mark.parametrize(
    ("architecture", "family", "head", "plugin"),
    [
        ("Gemma3TextModel", "Gemma3", "", "Gemma3ForCausalLM"),
        ("LlamaBidirectionalModel", "Llama", "", "LlamaForCausalLM"),
        ("Qwen2ForProcessRewardModel", "Qwen2", "token_classes", "Qwen2ForCausalLM"),
        ("GPT2ForSequenceClassification", "GPT2", "classes", "GPT2LMHeadModel"),
        ("Unheard", "Unheard", None, None),
    ],
)
def test_what_names_of_classes_say(
    architecture: str, family: str, head: str | None, plugin: str | None
) -> None:
    assert stem(architecture) == (family, head)
    assert registered(architecture) == plugin


POOLER = '''
from dataclasses import dataclass
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

class Middle(Pooler):
    """The token in the middle, or before it."""
    info = Info(summary="the token in the middle")

    @dataclass(frozen=True)
    class Options:
        """Options."""
        before: int = 0

    def pool(self, hidden, token_ids):
        """Return the token's state."""
        return hidden[len(hidden) // 2 - self.options.before]
'''


def test_a_pooler_of_ones_own_and_its_options(tmp_path: Path) -> None:
    (tmp_path / "middle.py").write_text(POOLER)
    asked = {"pooling_type": f"{tmp_path / 'middle.py'}:Middle"}
    options = {"pooler": {"before": 2}}
    found = pooling_of(
        tmp_path, GENERATES, runner="pooling", pooler_config=asked, plugin_options=options
    )
    assert (found.pooler.options, found.token_pooler.options) == ({"before": 2}, {})
