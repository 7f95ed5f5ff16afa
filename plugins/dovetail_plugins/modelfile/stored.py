"""A model of Ollama's store as a Modelfile: its template, parameters and messages are layers.

Format: the layers of a manifest have the media types application/vnd.ollama.image.KIND; `params`
and `messages` are JSON, `template`, `system` and `license` are text, `model`, `projector` and
`adapter` are files of weights. Source: manifests of https://github.com/ollama/ollama
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError, DovetailError
from dovetail.interfaces.model_store import StoredModel
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.model_stores.ollama import Ollama, manifest_of, store_folder
from dovetail_plugins.modelfile.creation import of_request
from dovetail_plugins.modelfile.model import Modelfile

KIND = "application/vnd.ollama.image."
TEXTS = {"template": "template", "system": "system"}
JSONS = {"params": "parameters", "messages": "messages"}
"""Kinds of layers, and the fields of /api/create that have the same form."""
MAX_BYTES = 4 << 20
log = logging.getLogger(__name__)


def find_manifest(name: str, store: Path | None = None) -> Path | None:
    """Return the manifest of a model by its name in Ollama, None if there is none."""
    folder = store or store_folder()
    return None if folder is None else manifest_of(folder, name)


def own_modelfile(model: StoredModel) -> Modelfile | None:
    """Return how a model of Ollama's store is to be served: its parameters, system message,
    example messages and projector. Its template stays that of its file. None for a model of another
    store, one without any of these, or one whose layers cannot be read, which the log says."""
    store, manifest = store_folder(), None
    if model.store == Ollama.title and store is not None:
        manifest = find_manifest(model.name, store)
    if manifest is None or store is None:
        return None
    try:
        found = of_manifest(manifest, store)
    except DovetailError as error:
        log.warning("%s is served without its parameters: %s", model.name, error)
        return None
    says_something = found.parameters or found.system or found.messages or found.projectors
    return replace(found, template="", adapters=()) if says_something else None


def of_manifest(manifest: Path, store: Path) -> Modelfile:
    """Return the Modelfile of a model in a store. Raises: ConfigError for layers that cannot be
    read"""
    files: dict[str, list[Path]] = {}
    content = _json(manifest)
    layers = content.get("layers") if isinstance(content, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        if not isinstance(layer, dict):
            raise ConfigError(f"{layer!r} is not a layer.", where=str(manifest))
        kind = str(layer.get("mediaType", "")).removeprefix(KIND)
        digest = str(layer.get("digest", "")).replace(":", "-", 1)
        if not digest.replace("-", "").isalnum():
            raise ConfigError(f"{digest!r} is not a digest.", where=str(manifest))
        files.setdefault(kind, []).append(store / "blobs" / digest)
    fields: dict[str, Any] = {"from": str(_only(files, "model", manifest))}
    fields |= {field: _text(files[kind][-1]) for kind, field in TEXTS.items() if kind in files}
    fields |= {field: _json(files[kind][-1]) for kind, field in JSONS.items() if kind in files}
    fields["license"] = [_text(file) for file in files.get("license", ())]
    found = of_request(_known(fields), str)
    return replace(
        found,
        projectors=tuple(map(str, files.get("projector", ()))),
        adapters=tuple(map(str, files.get("adapter", ()))),
    )


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, without null parameters."""
    given = fields.get("parameters")
    if not isinstance(given, Mapping):
        return fields
    return fields | {"parameters": {n: v for n, v in given.items() if v is not None}}


def _only(files: Mapping[str, list[Path]], kind: str, manifest: Path) -> Path:
    found = files.get(kind, [])
    if len(found) != 1:
        raise ConfigError(f"the model has {len(found)} files, not one.", where=str(manifest))
    return found[0]


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"a layer cannot be read: {error}.", where=str(file)) from error


def _json(file: Path) -> Any:
    try:
        return json_value(_text(file))
    except InvalidJson as error:
        raise ConfigError(f"a layer is not JSON: {error}.", where=str(file)) from error
