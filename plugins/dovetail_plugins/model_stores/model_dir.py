"""The folders of --model-dir."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel
from dovetail.interfaces.plugin import Info
from dovetail_plugins.model_stores._folders import find, models


class ModelDir(ModelStore):
    """The user's own folders; they hide models of the same name elsewhere."""

    info = Info(summary="folders and GGUF files in the folders of --model-dir")
    title = "--model-dir"
    removal = "delete it yourself: {path}"
    auto_rank = 90

    def __init__(self, options: Any, places: StorePlaces) -> None:
        self._roots = [Path(folder).expanduser().absolute() for folder in places.model_dirs]

    def models(self) -> Iterator[StoredModel]:
        for root in self._roots:
            yield from models(root, self.title, by_quant=False)

    def find(self, wanted: WantedModel) -> StoredModel | None:
        return find(self._roots, wanted.name, self.title) if wanted.revision is None else None
