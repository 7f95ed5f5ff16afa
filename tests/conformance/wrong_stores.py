"""Model stores for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel
from dovetail.interfaces.plugin import Info


class RightStore(ModelStore):
    """The folders in the folders of --model-dir."""

    info = Info(summary="folders in folders")
    title = "folders"
    removal = "delete {path}."

    def __init__(self, options: Any, places: StorePlaces) -> None:
        self._folders = [one for root in places.model_dirs for one in sorted(Path(root).iterdir())]

    def models(self) -> Iterator[StoredModel]:
        for folder in self._folders:
            yield StoredModel(name=folder.name, store=self.title, path=folder, num_bytes=0)

    def find(self, wanted: WantedModel) -> StoredModel | None:
        if wanted.revision is not None:
            return None
        return next((one for one in self.models() if one.name == wanted.name), None)


class NamelessStore(RightStore):
    title = " "


class CurlyStore(RightStore):
    removal = "delete {file}."


class SecretiveStore(RightStore):
    def find(self, wanted: WantedModel) -> StoredModel | None:
        return None


class GhostStore(RightStore):
    def models(self) -> Iterator[StoredModel]:
        for model in super().models():
            yield replace(model, path=model.path / "gone")


class ObligingStore(RightStore):
    def find(self, wanted: WantedModel) -> StoredModel | None:
        return super().find(wanted) or next(self.models(), None)


class TimelessStore(RightStore):
    def find(self, wanted: WantedModel) -> StoredModel | None:
        return super().find(WantedModel(name=wanted.name))


class TouchingStore(RightStore):
    def models(self) -> Iterator[StoredModel]:
        for model in super().models():
            (model.path / "seen").write_text("")
            yield model


class OnceStore(RightStore):
    def models(self) -> Iterator[StoredModel]:
        yield from super().models()
        self._folders = []
