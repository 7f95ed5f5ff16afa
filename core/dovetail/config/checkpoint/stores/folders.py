"""Models in ordinary folders: --model-dir, and the stores of LM Studio and ModelScope.

A model is a folder with a config.json and weights, or GGUF files. Its name is its relative path.

Source of LM Studio's layout (models/PUBLISHER/MODEL/FILE): its documentation, "Import models"; of
ModelScope's (models/ORG/MODEL, a dot written as three underscores): its client.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from dovetail.config.checkpoint.sources.weights_check import (
    has_layout_weights,
    has_weights,
    is_whole_model,
    missing_files,
    weights_bytes,
)
from dovetail.config.checkpoint.stores.gguf_names import grouped
from dovetail.config.checkpoint.stores.hub_cache import find_quant, gguf_entries
from dovetail.config.checkpoint.stores.stored import FOLDER, LM_STUDIO, MODELSCOPE, StoredModel

MAX_DEPTH = 3
"""Maximum depth of a model in folders."""
_DOT = "___"
_HOME_POINTER = ".lmstudio-home-pointer"


def lm_studio_folders(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the folders in which LM Studio may store models; they need not exist."""
    home = Path((os.environ if environ is None else environ).get("HOME") or "~").expanduser()
    pointer = home / _HOME_POINTER
    folders = []
    if pointer.is_file():
        folders = [Path(pointer.read_text(encoding="utf-8").strip()) / "models"]
    return [*folders, home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]


def modelscope_cache(given: str | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return ModelScope's cache folder: the given one, MODELSCOPE_CACHE, or the default."""
    environ = os.environ if environ is None else environ
    folder = given or environ.get("MODELSCOPE_CACHE")
    if folder:
        return Path(folder).expanduser()
    home = Path(environ.get("HOME") or "~").expanduser()
    return home / ".cache" / "modelscope" / "hub"


def modelscope_folder(name: str, revision: str | None = None, cache: str | None = None) -> Path:
    """Return a ModelScope model's folder, which need not exist; each revision has its own."""
    place = "models" if revision is None else f"revisions/{quote(revision, safe='')}"
    return modelscope_cache(cache) / place / modelscope_name(name)


def modelscope_name(name: str) -> str:
    """Return a model's name as written in ModelScope's cache folders."""
    return name.replace(".", _DOT)


def modelscope_models(cache: Path) -> Iterator[StoredModel]:
    """Yield the models of ModelScope's cache."""
    for model in models(cache / "models", MODELSCOPE):
        yield replace(model, name=model.name.replace(_DOT, "."))


def models(root: Path, store: str = FOLDER) -> Iterator[StoredModel]:
    """Yield the models in a folder and its subfolders, named by relative path."""
    yield from _models(root, root, store, MAX_DEPTH)


def _models(root: Path, folder: Path, store: str, depth: int) -> Iterator[StoredModel]:
    if folder != root and _is_checkpoint(folder):
        fault = "some of its files are missing" if missing_files(folder) else ""
        yield StoredModel(
            name=folder.relative_to(root).as_posix(), store=store, path=folder,
            num_bytes=weights_bytes(folder), fault=fault,
        )  # fmt: skip
        return
    ggufs = grouped(file.name for file in folder.glob("*.gguf"))
    for one in ggufs:
        if folder == root or store == FOLDER:
            first = folder / one.files[0]
            yield StoredModel(
                name=first.relative_to(root).as_posix(), store=store, path=first,
                num_bytes=sum((folder / file).stat().st_size for file in one.files),
                label=one.label,
            )  # fmt: skip
    if ggufs and folder != root and store in (LM_STUDIO, MODELSCOPE):
        yield from gguf_entries(folder.relative_to(root).as_posix(), folder, store)
    elif depth:
        for inner in sorted(_folders(folder)):
            yield from _models(root, inner, store, depth - 1)


def _folders(folder: Path) -> Iterator[Path]:
    try:
        found = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError:  # another user's folder: it cannot be served
        return
    yield from (entry for entry in found if entry.is_dir())


def _is_checkpoint(folder: Path) -> bool:
    settings = ("config.json", "params.json")
    return any((folder / name).is_file() for name in settings) and has_layout_weights(folder)


def find(root: Path, name: str) -> Path | None:
    """Return the model of this name in a folder, None if there is none. Raises: ConfigError if
    several match"""
    bare, _, quant = name.partition(":")
    if not bare or Path(bare).is_absolute() or ".." in Path(bare).parts:
        return None
    path = root / bare
    if quant:
        return find_quant(path, name, quant) if path.is_dir() else None
    if is_whole_model(path) or (path.is_dir() and has_weights(path)):
        return path
    return None
