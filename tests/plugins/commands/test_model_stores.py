"""Models by name: what each store holds, which one a name means, and what is left alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dovetail.config.checkpoint.sources.gguf_names import grouped, label_of
from dovetail.config.checkpoint.sources.hub import Hub, needed_files
from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.errors import ConfigError
from dovetail.interfaces.model_store import WantedModel
from dovetail_plugins.model_stores import lm_studio, ollama
from support.model_stores import GGUF, add_to_ollama, write_cached

WHOLE = {"config.json": b"{}", "model.safetensors": b"w" * 10, "tokenizer.json": b"{}"}
QUANTS = {
    "config.json": b"{}",
    "m-Q4_K_M.gguf": GGUF,
    "m-Q8_0-00001-of-00002.gguf": GGUF + b"1",
    "m-Q8_0-00002-of-00002.gguf": b"2",
    "mmproj-m-F16.gguf": GGUF + b"p",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a home without any store, and no way to the hub."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return home


@pytest.mark.parametrize(
    ("stem", "label"),
    [
        ("Qwen2.5-0.5B-Instruct-Q4_K_M", "Q4_K_M"),
        ("model.q8_0", "Q8_0"),
        ("gemma-3-1b-it-UD-IQ2_XXS", "UD-IQ2_XXS"),
        ("gpt-oss-20b-MXFP4", "MXFP4"),
        ("llama-bf16", "BF16"),
        ("TQ1_0", "TQ1_0"),
        ("Q3_K_XL-story", ""),
        ("model", ""),
    ],
)
def test_labels_of_files(stem: str, label: str) -> None:
    assert label_of(stem) == label


def test_divided_files_are_one_model() -> None:
    found = grouped(["a/m-Q8_0-00002-of-00002.gguf", "a/m-Q8_0-00001-of-00002.gguf", "mmproj.gguf"])
    assert [(one.label, len(one.files)) for one in found] == [("Q8_0", 2)]
    assert found[0].files[0].endswith("00001-of-00002.gguf")


def test_the_hubs_cache(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    whole = write_cached(cache, "org/whole", WHOLE)
    quants = write_cached(cache, "org/quants", QUANTS)
    index = json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}})
    unfinished = {**WHOLE, "model.safetensors.index.json": index.encode()}
    write_cached(cache, "org/unfinished", unfinished)
    found = {model.name: model for model in Stores.of((), str(cache)).all_models()}
    assert set(found) == {"org/whole", "org/unfinished", "org/quants:Q4_K_M", "org/quants:Q8_0"}
    assert (found["org/whole"].path, found["org/whole"].num_bytes) == (whole, 10)
    assert found["org/quants:Q8_0"].num_bytes == len(GGUF) + 2
    assert "not finished" in found["org/unfinished"].fault
    assert find_model("org/whole") == whole
    assert find_model("org/quants:q4_k_m") == quants / "m-Q4_K_M.gguf"
    assert find_model("org/quants:Q8_0") == quants / "m-Q8_0-00001-of-00002.gguf"
    with pytest.raises(ConfigError, match="neither a folder nor complete"):
        find_model("org/unfinished")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        find_model("org/quants:Q2_K")


def test_a_revision_is_one_of_the_hub(tmp_path: Path) -> None:
    snapshot = write_cached(tmp_path / "hub", "org/quants", QUANTS, commit="d" * 40)
    (tmp_path / "models" / "org" / "quants").mkdir(parents=True)
    (tmp_path / "models" / "org" / "quants" / "m-Q4_K_M.gguf").write_bytes(GGUF)
    dirs = [str(tmp_path / "models")]
    name = "org/quants:Q4_K_M"
    assert find_model(name, revision="d" * 40) == snapshot / "m-Q4_K_M.gguf"
    assert find_model(name, model_dirs=dirs).is_relative_to(tmp_path / "models")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        find_model(name, revision="e" * 40)


def test_two_files_of_one_quantization_are_told_apart(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    files = {"a-Q4_0.gguf": GGUF, "b-Q4_0.gguf": GGUF + b"b"}
    snapshot = write_cached(cache, "org/two", files)
    names = [model.name for model in Stores.of((), str(cache)).all_models()]
    assert names == ["org/two:a-Q4_0", "org/two:b-Q4_0"]
    assert find_model(names[1], hub=Hub(cache=str(cache))) == snapshot / "b-Q4_0.gguf"
    with pytest.raises(ConfigError, match="may be one of a-Q4_0, b-Q4_0"):
        find_model("org/two:Q4_0")


def test_ollamas_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "ollama"
    blob = add_to_ollama(store, "registry.ollama.ai/library/qwen2.5:0.5b", GGUF)
    latest = add_to_ollama(store, "registry.ollama.ai/library/story:latest", GGUF + b"l")
    add_to_ollama(store, "registry.ollama.ai/someone/theirs:v1", GGUF + b"t")
    add_to_ollama(store, "hf.co/org/model:Q4_0", GGUF + b"h")
    add_to_ollama(store, "registry.ollama.ai/library/tuned:a", GGUF, further=("adapter",))
    (store / "manifests" / "registry.ollama.ai" / "library" / "bad").mkdir()
    (store / "manifests" / "registry.ollama.ai" / "library" / "bad" / "tag").write_text("[")
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    before = sorted((p, p.stat().st_mtime_ns) for p in store.rglob("*"))
    found = {model.name: model for model in Stores.of().all_models()}
    assert set(found) == {
        "qwen2.5:0.5b", "story:latest", "someone/theirs:v1", "hf.co/org/model:Q4_0", "tuned:a",
    }  # fmt: skip
    assert (found["qwen2.5:0.5b"].label, found["qwen2.5:0.5b"].family) == ("Q4_K_M", "qwen2")
    assert "adapter" in found["tuned:a"].fault
    with caplog.at_level(logging.INFO):
        assert find_model("qwen2.5:0.5b") == blob
    assert "is in Ollama" in caplog.text
    assert find_model("story") == latest
    with pytest.raises(ConfigError, match="adapter"):
        find_model("tuned:a")
    with pytest.raises(ConfigError, match=r"no model qwen2\.5:7b"):
        find_model("qwen2.5:7b")
    for name in ("../../x", "library/../story", "a/b/c/d:e", ":tag", "story:../latest", "/"):
        assert ollama.find(store, name) is None
    assert before == sorted((p, p.stat().st_mtime_ns) for p in store.rglob("*"))


def test_lm_studios_folders(tmp_path: Path, home: Path) -> None:
    (home / ".lmstudio-home-pointer").write_text(str(tmp_path / "studio"))
    folder = tmp_path / "studio" / "models" / "publisher" / "model-GGUF"
    folder.mkdir(parents=True)
    for name, content in QUANTS.items():
        (folder / name).write_bytes(content)
    names = [model.name for model in Stores.of().all_models()]
    assert names == ["publisher/model-GGUF:Q4_K_M", "publisher/model-GGUF:Q8_0"]
    assert find_model(names[0]) == folder / "m-Q4_K_M.gguf"
    assert lm_studio.folders()[1] == home / ".lmstudio" / "models"


def test_folders_of_model_dir(tmp_path: Path) -> None:
    root = tmp_path / "models"
    (root / "inner" / "whole").mkdir(parents=True)
    for name, content in WHOLE.items():
        (root / "inner" / "whole" / name).write_bytes(content)
    (root / "one-Q4_0.gguf").write_bytes(GGUF)
    found = {model.name: model for model in Stores.of([str(root)]).all_models()}
    assert set(found) == {"inner/whole", "one-Q4_0.gguf"}
    for name, model in found.items():
        assert find_model(name, model_dirs=[str(root)]) == model.path
    wanted = WantedModel(name="../models/inner/whole")
    assert Stores.of([str(root)]).find(wanted) is None


def test_the_first_store_of_a_name_counts(tmp_path: Path) -> None:
    cached = write_cached(tmp_path / "hub", "org/model", WHOLE)
    assert find_model("org/model") == cached
    own = tmp_path / "models" / "org" / "model"
    own.mkdir(parents=True)
    for name, content in WHOLE.items():
        (own / name).write_bytes(content)
    dirs = [str(tmp_path / "models")]
    assert find_model("org/model", model_dirs=dirs) == own
    (told,) = Stores.of(dirs).all_models()
    assert told.path == own


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "~/nothing", "a/b/c", "a:b:c"])
def test_what_is_nowhere_is_one_error(name: str) -> None:
    with pytest.raises(ConfigError):
        find_model(name)


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin", "README.md", ".gitattributes"],
         ["config.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin", "training_args.bin"],
         ["config.json", "pytorch_model.bin"]),
        (["params.json", "consolidated.safetensors"], ["params.json", "consolidated.safetensors"]),
        (["config.json", "model.safetensors", "consolidated.safetensors", "original/a.safetensors"],
         ["config.json", "model.safetensors"]),
        (["config.json", "onnx/config.json", "additional_chat_templates/tool_use.jinja"],
         ["additional_chat_templates/tool_use.jinja", "config.json"]),
    ],
)  # fmt: skip
def test_files_that_a_model_needs(names: list[str], needed: list[str]) -> None:
    assert needed_files(names, with_weights=True) == needed
    weights = (".safetensors", ".bin")
    every = needed_files(names, with_weights=True, every_format=True)
    top = {n for n in names if "/" not in n and n.endswith(weights) and "training" not in n}
    assert {name for name in every if name.endswith(weights)} == top


def test_a_blob_without_an_ending_is_a_model(tmp_path: Path) -> None:
    blob = tmp_path / "sha256-0"
    blob.write_bytes(GGUF)
    assert find_model(str(blob)) == blob
    (tmp_path / "notes").write_bytes(b"GGU")
    with pytest.raises(ConfigError, match="is a file"):
        find_model(str(tmp_path / "notes"))
