"""A quick check of weight files before the engine starts: is each present and complete?

Format: safetensors (8 bytes header length, JSON header with data_offsets, data) and the
`*.index.json` of divided checkpoints. Reads headers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.sources.gguf_names import parts_of
from dovetail.errors import ConfigError
from dovetail.json_values import json_value

MAX_HEADER_BYTES = 100 * 2**20
WHOLE_MODELS = (".gguf",)
"""Suffixes of files that contain weights, settings and tokenizer."""
_BEGINNINGS = (b"GGUF",)
"""First bytes of such files, since content-addressed stores have no suffixes."""
_SUFFIXES = (
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.tensors",
    *(f"*{end}" for end in WHOLE_MODELS),
)
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin")


def check_weights(path: str | Path, ignored: Sequence[str] = ()) -> None:
    """Raise ConfigError naming the file if an indexed file is missing or one is damaged.

    Files with a name that matches an `ignored` glob pattern are skipped.
    """
    folder = Path(path)
    for index in sorted(folder.glob("*.safetensors.index.json")):
        _check_index(folder, index)
    for file in sorted(folder.glob("*.safetensors")):
        if not any(fnmatch(file.name, pattern) for pattern in ignored):
            _check_file(file)


def has_weights(path: str | Path) -> bool:
    """Return whether the folder contains any weight file, or is one itself."""
    return bool(weight_files(path))


def weight_files(path: str | Path) -> list[Path]:
    """Return the weight files of a folder, or of a model given by one of its whole files."""
    whole = Path(path)
    if is_whole_model(whole):
        return parts_of(whole)
    found = (file for suffix in _SUFFIXES for file in whole.glob(suffix))
    return sorted(file for file in found if file.name not in NOT_WEIGHTS)


def has_layout_weights(folder: Path) -> bool:
    """Return whether a folder contains weights that need separate settings."""
    return any(file.suffix.lower() not in WHOLE_MODELS for file in weight_files(folder))


def weights_bytes(path: str | Path) -> int:
    """Return the size of the weight files of a folder, or of the file that is a whole model."""
    return sum(file.stat().st_size for file in weight_files(path))


def is_whole_model(path: Path) -> bool:
    """Return whether a file contains weights, settings and tokenizer."""
    if not path.is_file():
        return False
    return path.suffix.lower() in WHOLE_MODELS or (not path.suffix and _begins_like_one(path))


def _begins_like_one(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) in _BEGINNINGS
    except OSError:
        return False


def has_config(folder: Path) -> bool:
    """Return whether a folder has the settings of a model."""
    return any((folder / name).is_file() for name in ("config.json", "params.json"))


def is_complete(folder: Path, *, needs_weights: bool = True) -> bool:
    """Return whether a model can be loaded from a folder, or at least its settings."""
    if not needs_weights:
        return has_config(folder)
    return has_weights(folder) and not missing_files(folder)


def no_weights(path: str | Path) -> ConfigError:
    """Return the error for a folder without weights."""
    return ConfigError(
        "the folder has no weight files (*.safetensors, *.bin, *.pt, *.gguf).",
        where=str(path),
        fix="finish the download, or use --load-format dummy for random weights.",
    )


def missing_files(path: str | Path) -> list[str]:
    """Return the weight files that a folder's indexes list but that are missing. Raises:
    ConfigError for an invalid index"""
    folder = Path(path)
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    return [name for index in indexes for name in _missing(folder, index)]


def _missing(folder: Path, index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ConfigError('has no "weight_map".', where=str(index), fix="download the file again.")
    return sorted({str(n) for n in weight_map.values() if not (folder / str(n)).is_file()})


def _check_index(folder: Path, index: Path) -> None:
    missing = _missing(folder, index)
    if missing:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ConfigError(
            f"{len(missing)} of the files it lists are missing: {shown}.",
            where=str(index),
            fix="finish the download.",
        )


def _check_file(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise _damaged(file, "its header is longer than the file")
        text = stream.read(length)
    try:
        header = json_value(text)
        ends = [_end(entry) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(file, "its header is not a safetensors header") from error
    wanted = 8 + length + max(ends, default=0)
    if wanted != size:
        raise _damaged(file, f"it has {size} bytes, its header asks for {wanted}")


def _end(entry: Any) -> int:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end:
        raise ValueError(f"offsets {begin}, {end}")
    return int(end)


def _damaged(file: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the file is damaged: {reason}.", where=str(file), fix="download the file again."
    )
