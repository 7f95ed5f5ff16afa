"""The entries of the folder by model, as `dovetail cache` lists, checks and removes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail_plugins.packed_weights import entry_file
from dovetail_plugins.packed_weights.folder import Entry, entries, remove_unfinished


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """One entry."""

    path: Path
    key: str

    def is_whole(self) -> bool:
        """Return whether every byte has its checksum. Raises: OSError"""
        try:
            entry_file.read(self.path, self.key)
        except entry_file.Damaged:
            return False
        return True


@dataclass(frozen=True, slots=True)
class PackedModel:
    """The entries of one model: one for each rank, instruction set and set of options."""

    model: str
    root: Path
    found: tuple[Entry, ...]
    world_size: int = 1

    def blocks(self) -> Iterator[PackedEntry]:
        """Yield the entries."""
        for entry in self.found:
            yield PackedEntry(entry.path, entry.key)

    def files(self) -> list[Path]:
        """Return the entries' files."""
        return [entry.path for entry in self.found]


def packed_models(folder: Path) -> list[PackedModel]:
    """Return the models with entries in a folder. A damaged entry has no model's name. Files of
    writers that have ended are removed."""
    remove_unfinished(folder)
    by_model: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries(folder):
        try:
            model = entry_file.read_index(entry.path).model
        except FileNotFoundError:
            continue  # another process has removed it
        except entry_file.Damaged:
            model = "(damaged)"
        by_model[model].append(entry)
    return [PackedModel(model, folder, tuple(found)) for model, found in sorted(by_model.items())]
