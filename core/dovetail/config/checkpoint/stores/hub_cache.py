"""The cache of the Hugging Face hub, in huggingface_hub's layout.

Format: models--ORG--NAME with refs (a branch's commit), snapshots (a folder for each commit, with
links as files) and blobs. Source: the guide "Understand caching" of huggingface_hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail.config.checkpoint.sources.weights_check import (
    has_layout_weights,
    missing_files,
    weights_bytes,
)
from dovetail.config.checkpoint.stores.gguf_names import bytes_of, models_below, named
from dovetail.config.checkpoint.stores.stored import HUB, StoredModel
from dovetail.errors import ConfigError

MAIN = "main"
_PREFIX = "models--"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def cache_folder(given: str | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: the given one, or that of HF_HUB_CACHE or HF_HOME."""
    environ = os.environ if environ is None else environ
    home = environ.get("HF_HOME") or str(
        Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    older = environ.get("HUGGINGFACE_HUB_CACHE")
    folder = given or environ.get("HF_HUB_CACHE") or older or str(Path(home) / "hub")
    return Path(os.path.expandvars(folder)).expanduser()


def repo_folder(cache: Path, name: str) -> Path:
    """Return the cache folder of a hub model, which need not exist."""
    return cache / f"{_PREFIX}{name.replace('/', '--')}"


def snapshot(cache: Path, name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a cached revision (None: of the branch main), or None."""
    repo = repo_folder(cache, name)
    commit = revision or MAIN
    ref = repo / "refs" / commit
    if not _COMMIT.fullmatch(commit) and ref.is_file():
        commit = ref.read_text(encoding="utf-8").strip()
    folder = repo / "snapshots" / commit
    return folder if folder.is_dir() else None


def commit_of(folder: Path) -> str | None:
    """Return the commit of a snapshot folder, None if it is not one."""
    is_one = folder.parent.name == "snapshots" and is_commit(folder.name)
    return folder.name if is_one else None


def blobs_of(folder: Path) -> Path | None:
    """Return the folder that a snapshot's links point to, None if it is not a snapshot."""
    return None if commit_of(folder) is None else folder.parent.parent / "blobs"


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a full commit hash."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def names(cache: Path) -> Iterator[str]:
    """Yield the names of the cached models, complete or not."""
    for repo in sorted(cache.glob(f"{_PREFIX}*")):
        if repo.is_dir():
            yield repo.name.removeprefix(_PREFIX).replace("--", "/")


def models(cache: Path) -> Iterator[StoredModel]:
    """Yield the cached models; with GGUF files, one per quantization, as NAME:QUANT."""
    for name in names(cache):
        folder = snapshot(cache, name) or _any_snapshot(cache, name)
        if folder is None:
            continue
        ggufs = models_below(folder)
        if ggufs:
            yield from gguf_entries(name, folder, HUB)
        if has_layout_weights(folder):
            yield StoredModel(
                name=name,
                store=HUB,
                path=folder,
                num_bytes=weights_bytes(folder),
                fault="its download is not finished" if missing_files(folder) else "",
            )


def gguf_entries(name: str, folder: Path, store: str) -> Iterator[StoredModel]:
    """Yield a folder's GGUF models as NAME:QUANT, or NAME:FILE if the quantization is ambiguous."""
    ggufs = models_below(folder)
    for one in ggufs:
        is_clear = bool(one.label) and len(named(ggufs, one.label)) == 1
        word = one.label if is_clear else Path(one.stem).name
        yield StoredModel(
            name=f"{name}:{word}",
            store=store,
            path=folder / one.files[0],
            num_bytes=bytes_of(folder, one),
            label=one.label,
        )


def find_quant(folder: Path, name: str, quant: str) -> Path | None:
    """Return a folder's (first) GGUF file of this quantization, None if there is none.

    Raises: ConfigError if several match
    """
    found = named(models_below(folder), quant)
    if len(found) > 1:
        files = ", ".join(Path(one.stem).name for one in found[:4])
        raise ConfigError(
            f"{quant} may be one of {files}.", where=name, fix="give a file's name after the colon."
        )
    return folder / found[0].files[0] if found else None


def _any_snapshot(cache: Path, name: str) -> Path | None:
    folders = [folder for folder in (repo_folder(cache, name) / "snapshots").glob("*")]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
