"""Models of Ollama's store with their layers, as Modelfiles and as settings."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.main import main
from dovetail.errors import ConfigError
from dovetail_plugins.modelfile.model import ExampleMessage, Modelfile
from dovetail_plugins.modelfile.stored import KIND, find_manifest, of_manifest

LAYERS = [
    ("model", b"GGUF"),
    ("projector", b"GGUF too"),
    ("template", b"{{ .Prompt }}"),
    ("system", b"Be brief."),
    ("params", b'{"stop": ["<|end|>"], "num_ctx": 4096, "temperature": 0.5, "top_k": null}'),
    ("messages", b'[{"role": "user", "content": "hi"}]'),
    ("license", b"MIT"),
    ("license", b"and more"),
]


def stored(store: Path, place: str, layers: list[tuple[str, bytes]]) -> Path:
    """Write a model of Ollama's; return its manifest."""
    found: list[dict[str, Any]] = []
    for kind, content in layers:
        digest = hashlib.sha256(content).hexdigest()
        (store / "blobs").mkdir(parents=True, exist_ok=True)
        (store / "blobs" / f"sha256-{digest}").write_bytes(content)
        found.append({"mediaType": f"{KIND}{kind}", "digest": f"sha256:{digest}"})
    manifest = store / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": found}))
    return manifest


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("tiny", "registry.ollama.ai/library/tiny/latest"),
        ("tiny:1b", "registry.ollama.ai/library/tiny/1b"),
        ("me/tiny", "registry.ollama.ai/me/tiny/latest"),
        ("hf.co/me/tiny:Q4_0", "hf.co/me/tiny/Q4_0"),
    ],
)
def test_names(tmp_path: Path, name: str, place: str) -> None:
    manifest = stored(tmp_path, place, LAYERS)
    assert find_manifest(name, tmp_path) == manifest
    for other in ("other", "tiny:../1b", "../tiny", "a/b/c/tiny", ""):
        assert find_manifest(other, tmp_path) is None


def test_layers(tmp_path: Path) -> None:
    manifest = stored(tmp_path, "registry.ollama.ai/library/tiny/latest", LAYERS)
    blobs = [
        str(tmp_path / "blobs" / f"sha256-{hashlib.sha256(content).hexdigest()}")
        for _, content in LAYERS
    ]
    assert of_manifest(manifest, tmp_path) == Modelfile(
        base=blobs[0],
        projectors=(blobs[1],),
        template="{{ .Prompt }}",
        system="Be brief.",
        parameters={"stop": ("<|end|>",), "num_ctx": 4096, "temperature": 0.5},
        messages=(ExampleMessage("user", "hi"),),
        licenses=("MIT", "and more"),
    )


@pytest.mark.parametrize(
    ("layers", "what"),
    [
        ([], "the model has 0 files"),
        ([("model", b"a"), ("model", b"b")], "the model has 2 files"),
        ([("model", b"a"), ("params", b"{")], "a layer is not JSON"),
        ([("model", b"a"), ("params", b'{"tops": 1}')], 'no parameter "tops"'),
        ([("model", b"a"), ("system", b"\xff")], "a layer cannot be read"),
    ],
)
def test_faults(tmp_path: Path, layers: list[tuple[str, bytes]], what: str) -> None:
    manifest = stored(tmp_path, "registry.ollama.ai/library/tiny/latest", layers)
    with pytest.raises(ConfigError, match=what):
        of_manifest(manifest, tmp_path)


def test_the_command_takes_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, "registry.ollama.ai/library/tiny/latest", LAYERS)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert main(["modelfile", "tiny"]) == 0
    fields = yaml.safe_load(capsys.readouterr().out)
    assert fields["served_model_name"] == ["tiny"]
    assert fields["chat_template"] == "{{ .Prompt }}"
    assert fields["override_generation_config"] == {"temperature": 0.5, "stop": ["<|end|>"]}
    assert main(["modelfile", "other"]) != 0
    assert "other is neither a file nor a model" in capsys.readouterr().err
