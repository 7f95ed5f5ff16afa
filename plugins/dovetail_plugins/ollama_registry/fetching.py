"""Fetching a model of Ollama's registry into Ollama's store, which Ollama reads too.

The registry speaks the protocol of container images: GET /v2/NAMESPACE/MODEL/manifests/TAG is the
manifest, JSON with `config` and `layers`, each with `mediaType`, `digest` and `size`; their content
is at /v2/NAMESPACE/MODEL/blobs/DIGEST, perhaps after a redirect, and may be asked for in ranges.
The manifest is written last, so that a model is in the store as a whole or not at all. Source:
https://github.com/opencontainers/distribution-spec; manifests of https://github.com/ollama/ollama
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.durable_files import write_whole
from dovetail_plugins.model_stores.ollama import HOST, MAX_MANIFEST_BYTES, store_folder
from dovetail_plugins.ollama_registry.blob import Blob, Tell, fetch_blob
from dovetail_plugins.ollama_registry.names import RegistryName
from dovetail_plugins.ollama_registry.requests import VARIABLE, opened, registry_errors

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
MODEL_TYPE = "application/vnd.ollama.image.model"


class _Layer(msgspec.Struct, kw_only=True, rename="camel"):
    media_type: str = ""
    digest: str
    size: int


class _Manifest(msgspec.Struct, kw_only=True):
    config: _Layer
    layers: list[_Layer]


def fetch_model(name: RegistryName, *, tell: Tell, say: Callable[[str], None]) -> Path:
    """Fetch what is missing of a model and return its manifest's path. `say` gets the states that
    are not about one blob. Raises: ConfigError, OSError if the disk is full"""
    store = _store()
    base = f"{_address()}/v2/{name.namespace}/{name.model}"
    data = _manifest_bytes(name, base)
    for blob in _blobs(name, data):
        fetch_blob(blob, store / "blobs", f"{base}/blobs/{blob.digest}", tell=tell, say=say)
    say("writing manifest")
    place = store / "manifests" / name.manifest
    place.parent.mkdir(parents=True, exist_ok=True)
    # Whatever is below `manifests` is taken for a model.
    write_whole(place, data, mode=0o644, folder=store / "blobs")
    return place


def _store() -> Path:
    """Return the store's folder, which is made if there is none. Raises: ConfigError"""
    usual = Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()
    folder = store_folder() or usual
    try:
        for part in ("manifests", "blobs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder / part):
                pass
    except OSError as error:
        raise ConfigError(
            f"Ollama's store {folder} cannot be written: {error.strerror or error}.",
            fix="set OLLAMA_MODELS to a folder that this user may write to, or fetch the model "
            "with `ollama pull`.",
        ) from error
    return folder


def _address() -> str:
    """Return the registry's address, without a slash at its end."""
    text = os.environ.get(VARIABLE) or HOST
    return (text if "://" in text else f"https://{text}").rstrip("/")


def _manifest_bytes(name: RegistryName, base: str) -> bytes:
    """Return a model's manifest as it was sent. Raises: ConfigError"""
    with registry_errors(name.full), opened(f"{base}/manifests/{name.tag}", MANIFEST_TYPE) as sent:
        data = bytes(sent.read(MAX_MANIFEST_BYTES + 1))
    if len(data) > MAX_MANIFEST_BYTES:
        raise ConfigError(
            f"the manifest of {name.full} has more than {MAX_MANIFEST_BYTES} bytes.",
            fix=f"check {VARIABLE}.",
        )
    return data


def _blobs(name: RegistryName, data: bytes) -> list[Blob]:
    """Return the blobs of a manifest, each once. Raises: ConfigError"""
    try:
        manifest = json_struct(data, _Manifest)
        found = [Blob(layer.digest, layer.size) for layer in (*manifest.layers, manifest.config)]
    except (InvalidJson, ValueError) as error:
        raise ConfigError(
            f"what the registry sent for {name.full} is not a manifest: it {error}",
            fix=f"check {VARIABLE}.",
        ) from error
    if all(layer.media_type != MODEL_TYPE for layer in manifest.layers):
        raise ConfigError(
            f"{name.full} has no GGUF file: Ollama runs it on its own servers, or from another "
            "format.",
            fix="name another tag of it.",
        )
    return list(dict.fromkeys(found))
