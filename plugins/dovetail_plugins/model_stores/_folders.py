"""Models in a folder and its subfolders: a folder with a config.json and weights, or GGUF files.

A model's name is its relative path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dovetail.config.checkpoint.sources.gguf_names import grouped
from dovetail.config.checkpoint.sources.weights_check import (
    has_config,
    has_layout_weights,
    has_weights,
    is_whole_model,
    missing_files,
    weights_bytes,
)
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.model_stores._gguf import bytes_of, find_quant, gguf_entries

MAX_DEPTH = 3
"""Maximum depth of a model in folders."""


def models(root: Path, store: str, *, by_quant: bool) -> Iterator[StoredModel]:
    """Yield the models in a folder and its subfolders. GGUF files of subfolders are named by their
    path, or `by_quant`: FOLDER:QUANT."""
    yield from _models(root, root, store, by_quant, MAX_DEPTH)


def _models(
    root: Path, folder: Path, store: str, by_quant: bool, depth: int
) -> Iterator[StoredModel]:
    if folder != root and _is_checkpoint(folder):
        fault = "some of its files are missing" if missing_files(folder) else ""
        yield StoredModel(
            name=folder.relative_to(root).as_posix(), store=store, path=folder,
            num_bytes=weights_bytes(folder), fault=fault,
        )  # fmt: skip
        return
    ggufs = grouped(file.name for file in folder.glob("*.gguf"))
    for one in ggufs:
        if folder == root or not by_quant:
            first = folder / one.files[0]
            yield StoredModel(
                name=first.relative_to(root).as_posix(), store=store, path=first,
                num_bytes=bytes_of(folder, one),
                label=one.label,
            )  # fmt: skip
    if ggufs and folder != root and by_quant:
        yield from gguf_entries(folder.relative_to(root).as_posix(), folder, store)
    elif depth:
        for inner in sorted(_folders(folder)):
            yield from _models(root, inner, store, by_quant, depth - 1)


def _folders(folder: Path) -> Iterator[Path]:
    try:
        found = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError:  # another user's folder: it cannot be served
        return
    yield from (entry for entry in found if entry.is_dir())


def _is_checkpoint(folder: Path) -> bool:
    return has_config(folder) and has_layout_weights(folder)


def find(roots: Sequence[Path], name: str, store: str) -> StoredModel | None:
    """Return the model of this name in the first folder that has one, or None. Raises: ConfigError
    if several match"""
    for root in roots:
        path = _found(root, name)
        if path is not None:
            return StoredModel(name=name, store=store, path=path, num_bytes=weights_bytes(path))
    return None


def _found(root: Path, name: str) -> Path | None:
    bare, _, quant = name.partition(":")
    if not bare or Path(bare).is_absolute() or ".." in Path(bare).parts:
        return None
    path = root / bare
    if quant:
        return find_quant(path, name, quant) if path.is_dir() else None
    if is_whole_model(path) or (path.is_dir() and has_weights(path)):
        return path
    return None
