"""ModelScope's cache: models/ORG/MODEL, with a folder for each revision that was fetched here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.model_path import is_hub_id
from dovetail.config.checkpoint.sources.weights_check import is_complete, weights_bytes
from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel
from dovetail.interfaces.plugin import Info
from dovetail_plugins.model_stores._folders import find, models
from dovetail_plugins.model_stores._modelscope_files import (
    DOT,
    cache_folder,
    download,
    folder_of,
    listed,
)


class ModelScope(ModelStore):
    """Models that ModelScope's client, or `dovetail pull --use-modelscope`, has fetched."""

    info = Info(summary="models fetched from ModelScope", source="ModelScope's client")
    title = "ModelScope"
    removal = "delete it yourself, or with ModelScope's tools: {path}"
    auto_rank = 70
    capabilities = frozenset({"fetches"})

    def __init__(self, options: Any, places: StorePlaces) -> None:
        self._is_hub = places.use_modelscope
        self._given = places.download_dir if self._is_hub else None
        self._root = cache_folder(self._given) / "models"

    def models(self) -> Iterator[StoredModel]:
        if self._root.is_dir():
            for model in models(self._root, self.title, by_quant=True):
                yield replace(model, name=model.name.replace(DOT, "."))

    def find(self, wanted: WantedModel) -> StoredModel | None:
        if wanted.revision is not None and not self._is_hub:
            return None
        repo, colon, quant = wanted.name.partition(":")
        if colon:
            root = folder_of("", wanted.revision, self._given)
            found = find([root], repo.replace(".", DOT) + colon + quant, self.title)
            return None if found is None else replace(found, name=wanted.name)
        if not is_hub_id(repo):
            return None
        folder = folder_of(repo, wanted.revision, self._given)
        if not folder.is_dir() or not is_complete(folder, needs_weights=wanted.needs_weights):
            return None
        return StoredModel(
            name=repo, store=self.title, path=folder, num_bytes=weights_bytes(folder)
        )

    def folder(self, wanted: WantedModel) -> Path:
        return folder_of(wanted.name, wanted.revision, self._given)

    def listed(self, wanted: WantedModel) -> list[str]:
        return [one.path for one in listed(wanted.name, wanted.revision)]

    def download(self, wanted: WantedModel, names: Sequence[str]) -> Path:
        return download(wanted.name, wanted.revision, names, self._given)
