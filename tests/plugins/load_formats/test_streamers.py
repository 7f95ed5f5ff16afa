"""Formats that packages read: their options reach the package, and errors are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.load_formats.fastsafetensors import Fastsafetensors
from dovetail_plugins.load_formats.runai_streamer import (
    RunaiStreamer,
    ShardedStreamOptions,
    StreamOptions,
)

TENSORS = {
    "wide": torch.arange(4096.0).view(64, 64),
    "odd": torch.arange(3, dtype=torch.int8),
    "half": torch.arange(5, dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = list(TENSORS)
    for number in range(2):
        part = {name: TENSORS[name] for name in names[number::2]}
        save_file(part, tmp_path / f"model-{number}.safetensors")
    return tmp_path


def test_options_are_checked_before_anything_is_loaded() -> None:
    for options in ({"concurrency": 0}, {"memory_limit": -1}, {"concurrency": 1.5}):
        for made in (StreamOptions, ShardedStreamOptions):
            with pytest.raises(ConfigError, match=f"load_format.{next(iter(options))}"):
                made(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"load_format\.pattern"):
        ShardedStreamOptions(pattern="x")


def test_an_absent_package_is_told_with_the_command() -> None:
    for plugin in (RunaiStreamer, Fastsafetensors):
        reason = plugin.unavailable_reason()
        assert reason is None or 'pip install "dovetail-llm[load-formats]"' in reason


def test_fastsafetensors(folder: Path) -> None:
    pytest.importorskip("fastsafetensors")
    found = dict(Fastsafetensors(None).tensors(Checkpoint(path=str(folder))))
    assert set(found) == set(TENSORS)
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


def test_runai_streamer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("runai_model_streamer")
    monkeypatch.delenv("RUNAI_STREAMER_CONCURRENCY", raising=False)
    options = StreamOptions(concurrency=3, memory_limit=20_000)
    seen: dict[str, str] = {}
    found = {}
    for name, tensor in RunaiStreamer(options).tensors(Checkpoint(path=str(folder))):
        seen = {k: v for k, v in os.environ.items() if k.startswith("RUNAI_STREAMER_")}
        found[name] = tensor
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    assert seen["RUNAI_STREAMER_CONCURRENCY"] == "3"
    assert seen["RUNAI_STREAMER_MEMORY_LIMIT"] == "20000"
    assert "RUNAI_STREAMER_CONCURRENCY" not in os.environ
    small = RunaiStreamer(StreamOptions(memory_limit=100))
    with pytest.raises(ConfigError, match="cannot be streamed"):
        list(small.tensors(Checkpoint(path=str(folder))))
