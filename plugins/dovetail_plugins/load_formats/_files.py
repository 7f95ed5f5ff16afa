"""The files of a checkpoint folder: which ones have weights, and whether they are plausible.

Imports no torch. Only names inside the folder are followed; a name in an index that points
elsewhere is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint, Progress

LFS_POINTER = b"version https://git-lfs"


def weight_files(
    checkpoint: Checkpoint, *, index: str, patterns: Sequence[str], skipped: Sequence[str] = ()
) -> list[Path]:
    """Return the files to read: the index's files if there is one, else all that match the first
    pattern with any match, without `skipped` and the checkpoint's own ignore patterns.

    Raises: ConfigError for an index that is malformed or names absent files.
    """
    folder = Path(checkpoint.path)
    if (folder / index).is_file():
        files = _indexed(folder / index)
    else:
        files = _matching(folder, patterns, skipped)
    return [path for path in files if not is_ignored(path.name, checkpoint.ignore_patterns)]


def is_ignored(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a file name matches one of the glob patterns."""
    return any(fnmatch(name, pattern) for pattern in patterns)


def why_no_folder(checkpoint: Checkpoint) -> str | None:
    """Return why the checkpoint's path is not a folder, or None."""
    folder = Path(checkpoint.path)
    if folder.is_dir():
        return None
    return f"{folder} is a file, not a folder" if folder.exists() else f"{folder} does not exist"


def check_nonempty(checkpoint: Checkpoint, files: Sequence[Path], kind: str) -> None:
    """Raises: ConfigError saying why there are no files to read."""
    if files:
        return
    reason = why_no_folder(checkpoint) or f"the folder holds no {kind} to read"
    if checkpoint.ignore_patterns:
        reason += f" (ignored: {', '.join(checkpoint.ignore_patterns)})"
    raise ConfigError(
        reason,
        where=checkpoint.path,
        fix="check the model's path, or choose another --load-format.",
    )


def check_is_content(path: Path) -> int:
    """Return the file's size in bytes. Raises: ConfigError if it is empty or a Git LFS pointer."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise ConfigError(
            "this is a Git LFS pointer, not the file itself.",
            where=str(path),
            fix="run `git lfs pull`.",
        )
    if size_bytes == 0:
        raise ConfigError("the file is empty.", where=str(path), fix="download it again.")
    return size_bytes


class ByteCount:
    """Adds up bytes and reports them to the progress callback, if there is one."""

    def __init__(self, progress: Progress | None, all_bytes: int) -> None:
        self._progress = progress
        self._all_bytes = all_bytes
        self._done_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Report `num_bytes` more as read."""
        self._done_bytes += num_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self._all_bytes)


def _indexed(index: Path) -> list[Path]:
    """Return the files an index names, in order of name."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError('"weight_map" is missing or empty.', where=str(index))
    names = sorted({str(name) for name in weight_map.values()})
    outside = [name for name in names if Path(name).name != name or name in ("", ".", "..")]
    if outside:
        raise ConfigError(
            f"names a file outside the folder: {outside[0]}",
            where=str(index),
            fix="put the weight files into the folder of their index.",
        )
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(names)} weight files are missing: {', '.join(missing[:5])}",
            where=str(index),
            fix="finish the download of the checkpoint.",
        )
    return [index.parent / name for name in names]


def _matching(folder: Path, patterns: Sequence[str], skipped: Sequence[str]) -> list[Path]:
    """Return the files that match the first pattern with any match, in order of name."""
    for pattern in patterns:
        found = [p for p in sorted(folder.glob(pattern)) if p.is_file()]
        found = [p for p in found if not is_ignored(p.name, skipped)]
        if found:
            return found
    return []
