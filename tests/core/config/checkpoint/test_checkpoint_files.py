"""Where models lie and whether their files are whole; nothing here may open a connection."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.sources import model_path
from dovetail.config.checkpoint.sources.model_path import find_model, find_tokenizer
from dovetail.config.checkpoint.sources.weights_check import check_weights, has_weights
from dovetail.errors import ConfigError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def safetensors(path: Path, *, num_bytes: int = 16, header: Any = None) -> Path:
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    text = json.dumps({"w": entry} if header is None else header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(num_bytes))
    return path


def test_whole_weights_pass(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors")
    check_weights(tmp_path)
    assert has_weights(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 15, 17])
def test_short_and_long_files_are_named(num_bytes: int, tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", num_bytes=num_bytes)
    with pytest.raises(ConfigError, match=r"model\.safetensors.*damaged"):
        check_weights(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"{x}",
        struct.pack("<Q", 7) + b'{"w":1}',
    ],
)
def test_damaged_headers_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors.*damaged"):
        check_weights(tmp_path)


def test_index_lists_a_missing_file(tmp_path: Path) -> None:
    safetensors(tmp_path / "a.safetensors")
    index = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"b\.safetensors"):
        check_weights(tmp_path)


def test_leftovers_of_training_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"x")
    assert not has_weights(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    whole = tmp_path / "model.gguf"
    whole.write_text("x", encoding="utf-8")
    assert find_model(str(whole)) == whole  # one file holds a whole model of this format
    assert find_tokenizer(None, whole) == whole
    file = tmp_path / "model.safetensors"
    file.write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file"):
        find_model(str(file))


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        find_tokenizer(None, tmp_path)


def test_no_model_is_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_path, "DEMO_PATH", tmp_path)
    with pytest.raises(ConfigError, match="no demo model"):
        find_model(None)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with caplog.at_level("INFO"):
        assert find_model(None) == tmp_path
    assert [record.message for record in caplog.records if "demo model" in record.message]


def test_floats_that_json_lacks_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    special = {"__float__": "-Infinity"}
    other = {"__float__": "a word"}
    stored = {"limit": [0.0, {"__float__": "Infinity"}], "low": special, "other": other}
    file.write_text(json.dumps(stored))
    found = read_json(file)
    assert found["limit"] == [0.0, float("inf")]
    assert found["low"] == float("-inf")
    assert found["other"] == other
