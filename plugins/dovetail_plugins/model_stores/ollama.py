"""Ollama's store, read in its own layout: manifests by name, and blobs by digest.

Format: models/manifests/HOST/NAMESPACE/MODEL/TAG is JSON with `layers`, each with a `mediaType`, a
`digest` and a `size`; the layer application/vnd.ollama.image.model is a GGUF file,
models/blobs/sha256-HEX. Source: docs and manifest files of ollama/ollama.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
_KIND = "application/vnd.ollama.image."
_SYSTEM_FOLDER = Path("/usr/share/ollama/.ollama/models")
MAX_MANIFEST_BYTES = 1 << 20


class Ollama(ModelStore):
    """Models that Ollama has fetched or made."""

    info = Info(summary="models of Ollama", source="manifests of https://github.com/ollama/ollama")
    title = "Ollama"
    removal = "`ollama rm {name}` does."
    auto_rank = 50

    def __init__(self, options: Any, places: StorePlaces) -> None:
        self._folder = store_folder()

    def models(self) -> Iterator[StoredModel]:
        return iter(()) if self._folder is None else models(self._folder)

    def find(self, wanted: WantedModel) -> StoredModel | None:
        if self._folder is None or wanted.revision is not None:
            return None
        return find(self._folder, wanted.name)


def store_folder() -> Path | None:
    """Return the store's folder: OLLAMA_MODELS, or the usual ones; None if there is none."""
    variable = os.environ.get("OLLAMA_MODELS")
    home = Path(os.environ.get("HOME") or "~").expanduser()
    places = [Path(variable)] if variable else [home / ".ollama" / "models", _SYSTEM_FOLDER]
    return next((folder for folder in places if (folder / "manifests").is_dir()), None)


def models(store: Path) -> Iterator[StoredModel]:
    """Yield the models of the store."""
    root = store / "manifests"
    for manifest in sorted(path for path in root.rglob("*") if path.is_file()):
        place = manifest.relative_to(root).parts
        found = _stored(store, manifest, _name(place)) if len(place) == 4 else None
        if found is not None:
            yield found


def find(store: Path, name: str) -> StoredModel | None:
    """Return the model of this name, or None."""
    manifest = manifest_of(store, name)
    if manifest is None:
        return None
    return _stored(store, manifest, _name(manifest.relative_to(store / "manifests").parts))


def manifest_of(store: Path, name: str) -> Path | None:
    """Return the manifest of a model, None if there is none. Tag, namespace and host may be left
    out."""
    bare, _, tag = name.partition(":")
    parts = bare.split("/")
    if not all(parts) or ".." in parts or "/" in tag or tag == ".." or len(parts) > 3:
        return None
    place = [*(HOST, NAMESPACE)[: 3 - len(parts)], *parts, tag or TAG]
    manifest = (store / "manifests").joinpath(*place)
    return manifest if manifest.is_file() else None


def _name(place: tuple[str, ...]) -> str:
    host, namespace, model, tag = place
    if host != HOST:
        return f"{host}/{namespace}/{model}:{tag}"
    return f"{model}:{tag}" if namespace == NAMESPACE else f"{namespace}/{model}:{tag}"


def _stored(store: Path, manifest: Path, name: str) -> StoredModel | None:
    """Return the model of a manifest, None if it has no model or cannot be read."""
    content = _read(manifest)
    layers = _by_kind(content)
    weights = layers.get("model", [])
    if not weights:
        return None
    blob = _blob(store, weights[0])
    config = _read(_blob(store, content.get("config") or {}))
    return StoredModel(
        name=name,
        store=Ollama.title,
        path=blob,
        num_bytes=blob.stat().st_size if blob.is_file() else 0,
        label=str(config.get("file_type") or ""),
        family=str(config.get("model_family") or ""),
        fault=_fault(blob, layers, len(weights)),
    )


def _fault(blob: Path, layers: Mapping[str, Any], num_files: int) -> str:
    if not blob.is_file() or not os.access(blob, os.R_OK):
        return "its file is missing or not readable"
    if "adapter" in layers:
        return "it is a LoRA adapter over another model"
    return "it has several files" if num_files > 1 else ""


def _by_kind(manifest: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    layers = manifest.get("layers")
    for layer in layers if isinstance(layers, list) else ():
        kind = str(layer.get("mediaType", "")) if isinstance(layer, dict) else ""
        if kind.startswith(_KIND):
            found.setdefault(kind.removeprefix(_KIND), []).append(layer)
    return found


def _blob(store: Path, layer: Mapping[str, Any]) -> Path:
    """Return the file of a layer. For an invalid digest it is a path that does not exist."""
    digest = str(layer.get("digest", "")).replace(":", "-", 1)
    return store / "blobs" / (digest if digest.replace("-", "").isalnum() else "none")


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} if the file contains none."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            return {}
        content = json_value(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
