"""Folders for the test models: written from a tokenizer's folder, and refused when malformed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import NoOptions
from dovetail.processes.process import child_environment
from dovetail_testing.models import (
    RandomLogitsModel,
    ReplayModel,
    registered,
    write_random_checkpoint,
    write_replay_checkpoint,
)
from dovetail_testing.tiny.transformer import PlainWeights, tiny_run


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a step."""

    num_prompt_tokens: int
    token_ids: Sequence[int]
    start: int
    num_tokens: int


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    added = [{"id": 9, "content": "<end>"}]
    vocab = {chr(97 + i): i for i in range(9)}
    written = {"added_tokens": added, "model": {"vocab": vocab}}
    (folder / "tokenizer.json").write_text(json.dumps(written))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_text("not to be copied")
    return folder


def test_replay_folder(tokenizer: Path, tmp_path: Path) -> None:
    scripts = [{"tokens": [1, 2]}, {"tokens": [3], "nan_at": 1}]
    folder = write_replay_checkpoint(tmp_path / "m", tokenizer_from=tokenizer, scripts=scripts)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["ReplayForCausalLM"]
    assert (config["vocab_size"], config["cue_base"], config["eos_token_id"]) == (12, 10, 9)
    assert config["replay"] == scripts
    copied = {path.name for path in folder.iterdir()}
    assert {"tokenizer.json", "chat_template.jinja"} < copied
    assert "model.safetensors" not in copied


def test_random_folder(tokenizer: Path, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "m", tokenizer_from=tokenizer, logits="random")
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["logits"]) == (10, "random")


def test_own_cues_leave_the_vocabulary(tokenizer: Path, tmp_path: Path) -> None:
    folder = write_replay_checkpoint(
        tmp_path / "m", tokenizer_from=tokenizer, scripts=[{"tokens": [1]}], cue_base=3
    )
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 10


def test_the_last_script_whose_cue_is_in_the_prompt_is_taken() -> None:
    scripts = [
        {"tokens": [1]},
        {"tokens": [2], "cue": [5, 6]},
        {"tokens": [3], "cue": [6, 7]},
        {"tokens": [4], "cue": [8]},
    ]
    model = ReplayModel(NoOptions(), context({"replay": scripts}))
    prompts = {(5, 7, 6): 1, (4, 5, 6, 9): 2, (5, 6, 7): 3, (6, 7, 5, 6): 3, (8,): 4}
    for prompt, token_id in prompts.items():
        row = Row(num_prompt_tokens=len(prompt), token_ids=prompt, start=0, num_tokens=1)
        assert model._script(row)["tokens"] == [token_id]


def test_unknown_vocabulary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocabulary is unknown"):
        write_random_checkpoint(tmp_path / "m", tokenizer_from=None)


@pytest.mark.parametrize(
    "replay",
    [
        None,
        [],
        {},
        [{"nan_at": 1}],
        [{"tokens": [1], "nana": 1}],
        [{"tokens": [10_000]}],
        [{"tokens": [1], "cue": [10_000]}],
    ],
)
def test_malformed_scripts_are_refused(replay: Any) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        ReplayModel(NoOptions(), context({"replay": replay}))


def test_unknown_logits_are_refused() -> None:
    with pytest.raises(ConfigError, match='"uniform" or "random"'):
        RandomLogitsModel(NoOptions(), context({"logits": "wild"}))


NAMES = {"ReplayForCausalLM", "RandomLogitsForCausalLM"}
LISTING = "from dovetail import registry; print(*registry.names('model'))"


def test_they_are_offered_inside_the_block_only() -> None:
    assert not NAMES & set(registry.names("model"))
    with registered():
        assert set(registry.names("model")) >= NAMES
        assert registry.load("model", "ReplayForCausalLM") is ReplayModel
        listed = subprocess.run(
            [sys.executable, "-P", "-c", LISTING],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert set(listed.stdout.split()) >= NAMES
    assert not NAMES & set(registry.names("model"))


def context(hf_config: dict[str, Any]) -> BuildContext:
    model = tiny_run(hf_config=hf_config).model
    return BuildContext(model=model, quant=PlainWeights(NoOptions(), model), device="cpu")
