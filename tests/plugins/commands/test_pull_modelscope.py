"""`dovetail pull` from ModelScope: fetched, taken up where it broke off, checked, found by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.config.checkpoint.sources.stores import Stores
from support.model_stores import FakeHub

NAME = "org/a.model"
FILES = {
    "README.md": b"# Model",
    "config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 512,
    "m-Q4_0.gguf": b"GGUF four",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name, value in (("HOME", "home"), ("MODELSCOPE_CACHE", "ms"), ("HF_HUB_CACHE", "hub")):
        monkeypatch.setenv(name, str(tmp_path / value))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    with FakeHub(FILES, broken="model.safetensors") as hub:
        monkeypatch.setenv("MODELSCOPE_DOMAIN", hub.url)
        yield hub


def test_pull(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """--use-modelscope, by its variable."""
    assert main(["pull", NAME]) == 0
    folder = tmp_path / "ms" / "models" / "org" / "a___model"
    assert f"is at {folder}" in capsys.readouterr().out
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert all(file.read_bytes() == FILES[file.name] for file in folder.iterdir())
    ranges = [asked for asked in hub.asked if "bytes=" in asked]
    assert len(ranges) == 1 and "bytes=0-" not in ranges[0]
    before = len(hub.asked)
    assert main(["pull", NAME]) == 0
    assert not [asked for asked in hub.asked[before:] if asked.endswith("/repo")]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_model(NAME) == folder
    assert NAME in [model.name for model in Stores.of().all_models()]


def test_a_quantization_a_revision_and_what_is_damaged(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", f"{NAME}:q4_0", "--revision", "v1/x"]) == 0
    path = tmp_path / "ms" / "revisions" / "v1%2Fx" / "org" / "a___model" / "m-Q4_0.gguf"
    assert path.read_bytes() == FILES["m-Q4_0.gguf"]
    part = tmp_path / "ms" / "models" / "org" / "a___model" / "config.json.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"{{{")
    assert main(["pull", NAME]) == 2
    assert "config.json is damaged" in capsys.readouterr().err
    assert not part.exists()
    assert main(["pull", "org/other"]) == 2
    assert "the hub did not give it" in capsys.readouterr().err
    hub.files["../out"] = b"x"
    assert main(["pull", NAME]) == 2
    assert "names a file '../out'" in capsys.readouterr().err
