"""The settings of a sentence-transformers folder, as that library writes them, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.sentence_transformers import SentenceSettings, sentence_settings
from dovetail.errors import ConfigError
from support.tiny_encoders import write_sentence_settings


def settings(folder: Path) -> SentenceSettings:
    found = sentence_settings(folder)
    assert found is not None
    return found


def change(file: Path, **fields: Any) -> None:
    """Change fields of a JSON object; None removes one."""
    content = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def test_a_folder_without_modules_has_none(tmp_path: Path) -> None:
    assert sentence_settings(tmp_path) is None


def test_everything_that_a_folder_says(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "document": ""}
    write_sentence_settings(
        tmp_path, dense=16, max_tokens=77, prompts=prompts, default_prompt_name="query"
    )
    found = settings(tmp_path)
    assert (found.pooler, found.is_normalized, found.max_tokens) == ("mean", True, 77)
    assert (found.prompts, found.default_prompt) == (prompts, "query")
    (dense,) = found.projections
    assert (dense.folder, dense.activation) == (str(tmp_path / "2_Dense"), "tanh")
    assert (dense.in_size, dense.out_size, dense.has_bias) == (32, 16, True)


def test_what_is_missing_is_not_made_up(tmp_path: Path) -> None:
    write_sentence_settings(tmp_path, is_normalized=False)
    (tmp_path / "sentence_bert_config.json").unlink()
    (tmp_path / "config_sentence_transformers.json").unlink()
    found = settings(tmp_path)
    assert (found.pooler, found.max_tokens, found.is_normalized) == ("mean", None, False)
    assert (found.projections, found.prompts, found.default_prompt) == ((), {}, "")


def test_no_pooling_module_means_vectors_of_tokens(tmp_path: Path) -> None:
    module = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    assert settings(tmp_path).pooler is None


@pytest.mark.parametrize(
    ("mode", "pooler"), [("cls_token", "cls"), ("mean_tokens", "mean"), ("max_tokens", "max")]
)
def test_every_pooler(tmp_path: Path, mode: str, pooler: str) -> None:
    assert settings(write_sentence_settings(tmp_path, pooling=mode)).pooler == pooler


def test_the_poolers_that_newer_folders_name(tmp_path: Path) -> None:
    write_sentence_settings(tmp_path)
    file = tmp_path / "1_Pooling" / "config.json"
    change(file, pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True)
    assert settings(tmp_path).pooler == "last"
    file.write_text(json.dumps({"pooling_mode": "mean"}))
    assert settings(tmp_path).pooler == "mean"


def test_prompts_that_are_not_pooled(tmp_path: Path) -> None:
    write_sentence_settings(tmp_path, prompts={"query": "query: "})
    assert settings(tmp_path).includes_prompt
    change(tmp_path / "1_Pooling" / "config.json", include_prompt=False)
    assert not settings(tmp_path).includes_prompt


@pytest.mark.parametrize(
    ("function", "activation"),
    [
        ("torch.nn.modules.linear.Identity", ""),
        ("torch.nn.modules.activation.ReLU", "relu"),
        (None, "tanh"),
    ],
)
def test_activations_of_dense_layers(tmp_path: Path, function: str | None, activation: str) -> None:
    write_sentence_settings(tmp_path, dense=16)
    change(tmp_path / "2_Dense" / "config.json", activation_function=function)
    assert settings(tmp_path).projections[0].activation == activation


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("modules.json", {}, "not a list of modules"),
        (
            "modules.json",
            [{"type": "sentence_transformers.models.CNN"}],
            r'models.CNN" is not supp',
        ),
        ("1_Pooling/config.json", {}, "pooling by nothing is not supported"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_sqrt_len_tokens": True},
            "the mean divided by the root of the length is not supported",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
            "pooling by cls, max is not supported",
        ),
        ("2_Dense/config.json", {"in_features": 32}, "'out_features' is missing"),
        ("2_Dense/config.json", {"in_features": "x", "out_features": 2}, "not a whole number"),
    ],
)
def test_what_is_wrong_names_its_file(tmp_path: Path, file: str, content: Any, said: str) -> None:
    write_sentence_settings(tmp_path, dense=16)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=said) as caught:
        sentence_settings(tmp_path)
    assert caught.value.where == str(tmp_path / file)
