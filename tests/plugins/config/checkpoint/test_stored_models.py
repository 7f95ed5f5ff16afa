"""Models are found by name in the stores of this machine; nothing here may open a connection."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.checkpoint.sources.model_path import find_model, find_tokenizer
from dovetail.errors import ConfigError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_model("models/mine") == tmp_path / "models" / "mine"
    with pytest.raises(ConfigError, match="has mine"):
        find_model("./models/yours")


def cached(root: Path, name: str, *, files: dict[str, str]) -> Path:
    """Lay a model into a hub cache as huggingface_hub does."""
    repo = root / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    for file, text in files.items():
        (snapshot / file).write_text(text, encoding="utf-8")
    return snapshot


def test_a_cached_model_starts_without_a_connection(tmp_path: Path) -> None:
    files = {"config.json": "{}", "model.safetensors": "", "tokenizer.json": "{}"}
    snapshot = cached(tmp_path, "some/model", files=files)
    assert find_model("some/model", hub=Hub(cache=str(tmp_path))) == snapshot
    assert find_tokenizer("some/model", Path("elsewhere"), hub=Hub(cache=str(tmp_path))) == snapshot


def test_an_unfinished_download_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cached(tmp_path, "some/model", files={"config.json": "{}"})
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        find_model("some/model", hub=Hub(cache=str(tmp_path)))
    assert find_model("some/model", hub=Hub(cache=str(tmp_path)), needs_weights=False) == snapshot


def test_unknown_hub_ids_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="neither a folder nor complete"):
        find_model("no/such-model", hub=Hub(cache=str(tmp_path)))
