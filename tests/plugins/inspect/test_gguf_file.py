"""`dovetail inspect FILE.gguf`: what the file says of itself, what it lacks, and images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail_plugins.inspect.gguf_file import LABELS
from dovetail_testing.tiny.models import write_tiny_checkpoint

gguf = pytest.importorskip("gguf")

from support.gguf_files import write_gguf  # noqa: E402


def inspected(capsys: pytest.CaptureFixture[str], file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text for people, and the facts."""
    assert main(["inspect", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert main(["inspect", str(file), "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown, facts


def test_labels_are_the_packages() -> None:
    theirs = {one.value: one.name for one in gguf.LlamaFileType}
    for number, label in LABELS.items():
        name = theirs[number]
        assert name.removeprefix("MOSTLY_").removeprefix("ALL_") == label, name


def test_what_a_file_says_of_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tiny_checkpoint(tmp_path / "hf", "Qwen3ForCausalLM")
    more = {"general.name": "Tiny", "general.license": "mit", "general.file_type": 15,
            "quantize.imatrix.dataset": "/home/me/talks.txt"}  # fmt: skip
    write_gguf(source, tmp_path / "model.gguf", settings=more)
    shown, facts = inspected(capsys, tmp_path / "model.gguf")
    assert facts["file"] == {"name": "Tiny", "license": "mit", "mixture": "Q4_K_M",
                             "importances": "talks.txt", "lacks": []}  # fmt: skip
    assert facts["media"] == []
    assert "origin called Tiny, license mit" in shown
    assert "quantization Q4_K_M, with importances of talks.txt" in shown
    assert "none: no projector file is used (--mmproj FILE names one)" in shown


def test_what_a_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tiny_checkpoint(tmp_path / "hf", "Qwen3ForCausalLM")
    write_gguf(source, tmp_path / "model.gguf", pre=None)
    shown, facts = inspected(capsys, tmp_path / "model.gguf")
    assert facts["file"]["mixture"] is None and facts["file"]["importances"] is None
    assert [one.split()[0] for one in facts["file"]["lacks"]] == ["tokenizer.ggml.pre"]
    assert "not in the file tokenizer.ggml.pre (" in shown
    assert "quantization not named" in shown


def test_other_checkpoints_have_no_such_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_tiny_checkpoint(tmp_path / "hf", "Qwen3ForCausalLM")
    shown, facts = inspected(capsys, source)
    assert facts["file"] is None and "projector" not in shown
