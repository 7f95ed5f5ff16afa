"""The cache of the Hugging Face hub, in huggingface_hub's layout.

Format: models--ORG--NAME with refs (a branch's commit), snapshots (a folder for each commit, with
links as files) and blobs. Source: the guide "Understand caching" of huggingface_hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

MAIN = "main"
PREFIX = "models--"
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
    return cache / f"{PREFIX}{name.replace('/', '--')}"


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
