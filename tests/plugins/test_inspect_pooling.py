"""`dovetail inspect` of checkpoints that pool: what each is for, and no KV cache for encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from support.tiny_encoders import write_sentence_settings, write_tiny_bert


def told(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[str, dict[str, Any]]:
    """Return the line of what a checkpoint is for, and all facts as --json has them."""
    assert main(["inspect", str(path), *words]) == 0
    screen = capsys.readouterr().out
    assert main(["inspect", str(path), "--json", *words]) == 0
    (line,) = [line for line in screen.splitlines() if line.startswith("  made for")]
    return " ".join(line.split()[2:]), json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("plain"))


def test_vectors(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in plain.iterdir():
        (tmp_path / file.name).symlink_to(file)
    write_sentence_settings(tmp_path, dense=16, is_normalized=False, prompts={"query": "Q: "})
    line, facts = told(capsys, tmp_path)
    assert line == "vectors of 16 dimensions, mean pooling, prompts: query"
    assert facts["purpose"] == {
        "tasks": ["embed", "token_embed"],
        "pooler": "mean",
        "dimensions": 16,
        "allowed_dimensions": [],
        "is_normalized": False,
        "classes": [],
        "prompts": ["query"],
    }
    memory = facts["memory"]
    assert (memory["kv_bytes_per_token"], memory["cache_bytes"], memory["fits"]) == (0, None, [])
    assert memory["longest_tokens"] == 128
    assert facts["warnings"] == []
    assert not {one["kind"] for one in facts["plugins"]} & {"tool_parser", "reasoning_parser"}


def test_flags_count(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, _ = told(capsys, plain, "--hf-overrides.matryoshka_dimensions", "[8, 32]")
    assert line == "vectors of 32 dimensions, cls pooling, normalized, or of 8, 32"


def test_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {0: "bad", 1: "good", 2: "best"}
    folder = write_tiny_bert(tmp_path / "three", num_classes=3, id2label=names)
    line, facts = told(capsys, folder)
    assert line == "3 classes of a prompt (cls pooling): bad, good, best"
    assert facts["purpose"]["classes"] == ["bad", "good", "best"]
    line, _ = told(capsys, write_tiny_bert(tmp_path / "one", num_classes=1))
    assert line == "one number of a prompt (cls pooling): a score or a reward"
    line, _ = told(capsys, write_tiny_bert(tmp_path / "tokens", num_classes=2, of="Token"))
    assert line == "2 classes of each token (all pooling): LABEL_0, LABEL_1"


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 0
    assert "made for           generates text" in capsys.readouterr().out
