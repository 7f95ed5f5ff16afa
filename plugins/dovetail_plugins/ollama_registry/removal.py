"""Deleting a model from Ollama's store: its manifest, and the blobs that no other model uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.model_stores.ollama import store_folder
from dovetail_plugins.modelfile.stored import find_manifest


@dataclass(frozen=True, slots=True)
class RegistryRemoval:
    """What is deleted with a model of Ollama's store, the `folder`."""

    folder: Path
    manifest: Path

    @property
    def num_bytes(self) -> int:
        """Return how much becomes free."""
        return sum(blob.stat().st_size for blob in self.blobs())

    def run(self) -> None:
        """Delete. Raises: OSError"""
        blobs = self.blobs()
        self.manifest.unlink()
        for blob in blobs:
            blob.unlink(missing_ok=True)

    def blobs(self) -> list[Path]:
        """Return the files that no other model uses. Raises: OSError, InvalidJson"""
        manifests = (one for one in (self.folder / "manifests").rglob("*") if one.is_file())
        used = {name for one in manifests if one != self.manifest for name in _blob_names(one)}
        own = _blob_names(self.manifest) - used
        return [blob for name in sorted(own) if (blob := self.folder / "blobs" / name).is_file()]


def registry_removal(name: str, where: str) -> RegistryRemoval:
    """Return what to delete with a model. Raises: ConfigError if a manifest cannot be read: then
    nobody knows which blobs it uses"""
    store, manifest = store_folder(), find_manifest(name)
    assert store is not None and manifest is not None, "the store has shown this model"
    removal = RegistryRemoval(store, manifest)
    try:
        removal.blobs()
    except (OSError, InvalidJson) as error:
        raise ConfigError(
            f"a manifest of Ollama's store {store} cannot be read: {error}",
            where=where,
            fix=f"`ollama rm {name}` deletes the model.",
        ) from error
    return removal


def _blob_names(manifest: Path) -> set[str]:
    """Return the file names of a manifest's blobs. Raises: OSError, InvalidJson"""
    content: Any = json_value(manifest.read_bytes())
    if not isinstance(content, dict):
        raise InvalidJson("is not an object.")
    layers = content.get("layers")
    rows = [*(layers if isinstance(layers, list) else ()), content.get("config")]
    digests = [str(row.get("digest", "")) for row in rows if isinstance(row, dict)]
    return {digest.replace(":", "-", 1) for digest in digests if "/" not in digest and digest}
