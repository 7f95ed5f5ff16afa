"""The cache of the Hugging Face hub; with GGUF files, a model for each quantization."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.gguf_names import models_below
from dovetail.config.checkpoint.sources.hub_cache import PREFIX, cache_folder, repo_folder, snapshot
from dovetail.config.checkpoint.sources.model_path import is_hub_id
from dovetail.config.checkpoint.sources.weights_check import (
    has_layout_weights,
    is_complete,
    missing_files,
    weights_bytes,
)
from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel
from dovetail.interfaces.plugin import Info
from dovetail_plugins.model_stores._gguf import find_quant, gguf_entries


class HubCache(ModelStore):
    """Models that `dovetail pull` and other users of the hub have fetched."""

    info = Info(
        summary="models fetched from the Hugging Face hub",
        source='huggingface_hub\'s guide "Understand caching"',
    )
    title = "hub cache"
    removal = "`dovetail rm {name}` does."
    auto_rank = 80

    def __init__(self, options: Any, places: StorePlaces) -> None:
        self.cache = cache_folder(places.download_dir)
        self._has_whole = not places.use_modelscope

    def models(self) -> Iterator[StoredModel]:
        for name in self._names():
            folder = snapshot(self.cache, name) or self._any_snapshot(name)
            if folder is None:
                continue
            if models_below(folder):
                yield from gguf_entries(name, folder, self.title)
            if has_layout_weights(folder):
                fault = "its download is not finished" if missing_files(folder) else ""
                yield StoredModel(
                    name=name, store=self.title, path=folder,
                    num_bytes=weights_bytes(folder), fault=fault,
                )  # fmt: skip

    def find(self, wanted: WantedModel) -> StoredModel | None:
        repo, _, quant = wanted.name.partition(":")
        if not (quant or (self._has_whole and is_hub_id(repo))):
            return None
        folder = snapshot(self.cache, repo, wanted.revision)
        if folder is None:
            return None
        if quant:
            path = find_quant(folder, wanted.name, quant)
        else:
            path = folder if is_complete(folder, needs_weights=wanted.needs_weights) else None
        if path is None:
            return None
        return StoredModel(
            name=wanted.name, store=self.title, path=path, num_bytes=weights_bytes(path)
        )

    def _names(self) -> Iterator[str]:
        """Yield the names of the cached models, complete or not."""
        for repo in sorted(self.cache.glob(f"{PREFIX}*")):
            if repo.is_dir():
                yield repo.name.removeprefix(PREFIX).replace("--", "/")

    def _any_snapshot(self, name: str) -> Path | None:
        folders = (repo_folder(self.cache, name) / "snapshots").glob("*")
        return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
