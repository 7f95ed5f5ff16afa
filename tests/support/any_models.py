"""A gateway for any model of this machine, over fake servers and stores of the test's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.config import Config
from dovetail_plugins.created_models.store import CreatedStore
from dovetail_plugins.gateway import catalogue as catalogue_module
from dovetail_plugins.gateway.catalogue import Catalogue
from support.demo_copies import demo_copy, with_file
from support.fake_models import Rig
from support.gguf_files import write_gguf
from support.model_stores import write_cached

DEMO_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
              "chat_template.jinja")  # fmt: skip


def own_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give stores of the test's own, none of them there yet, that are read at each request."""
    for name, folder in {
        "HOME": "home",
        "HF_HUB_CACHE": "hub",
        "OLLAMA_MODELS": "ollama",
        "MODELSCOPE_CACHE": "modelscope",
        "XDG_DATA_HOME": "data",
    }.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setattr(catalogue_module, "SCAN_PERIOD_S", 0.0)


def demo_files() -> dict[str, bytes]:
    """Return the files of the demo model."""
    return {name: (DEMO_PATH / name).read_bytes() for name in DEMO_FILES}


def demo_gguf(folder: Path) -> bytes:
    """Return the demo model as a GGUF file."""
    folder.mkdir(parents=True, exist_ok=True)
    source = demo_copy(folder, "model-mtp.safetensors")
    settings = json.loads((DEMO_PATH / "tokenizer_config.json").read_text())
    settings["bos_token"] = settings["eos_token"]  # GGUF's writer wants one
    with_file(source, "tokenizer_config.json", json.dumps(settings))
    write_gguf(Path(source), folder / "demo.gguf")
    return (folder / "demo.gguf").read_bytes()


def cache_demo(tmp_path: Path, name: str = "org/model") -> Path:
    """Put the demo model into the hub's cache; return its snapshot."""
    return write_cached(tmp_path / "hub", name, demo_files())


def any_rig(*names: str, config: dict[str, Any] | None = None, **more: Any) -> Rig:
    """Return a gateway that offers all models of the stores."""
    return Rig(
        *names, catalogue=Catalogue(Config.from_fields(config or {}), CreatedStore()), **more
    )


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
