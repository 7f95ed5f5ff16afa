"""The folders of LM Studio: models/PUBLISHER/MODEL/FILE.

Source: its documentation, "Import models".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel
from dovetail.interfaces.plugin import Info
from dovetail_plugins.model_stores._folders import find, models

_HOME_POINTER = ".lmstudio-home-pointer"


class LmStudio(ModelStore):
    """Models that LM Studio has fetched."""

    info = Info(summary="models of LM Studio", source='LM Studio\'s documentation, "Import models"')
    title = "LM Studio"
    removal = "delete it in LM Studio, or with its `lms` command."
    auto_rank = 60

    def __init__(self, options: Any, places: StorePlaces) -> None:
        self._roots = folders()

    def models(self) -> Iterator[StoredModel]:
        for root in self._roots:
            if root.is_dir():
                yield from models(root, self.title, by_quant=True)

    def find(self, wanted: WantedModel) -> StoredModel | None:
        return find(self._roots, wanted.name, self.title) if wanted.revision is None else None


def folders() -> list[Path]:
    """Return the folders in which LM Studio may store models; they need not exist."""
    home = Path(os.environ.get("HOME") or "~").expanduser()
    pointer = home / _HOME_POINTER
    moved = []
    if pointer.is_file():
        moved = [Path(pointer.read_text(encoding="utf-8").strip()) / "models"]
    return [*moved, home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
