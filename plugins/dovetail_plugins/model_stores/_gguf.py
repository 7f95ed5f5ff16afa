"""GGUF models in a folder by name: NAME:QUANT, or NAME:FILE if the quantization is ambiguous."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dovetail.config.checkpoint.sources.gguf_names import GgufFiles, models_below, named
from dovetail.errors import ConfigError
from dovetail.interfaces.model_store import StoredModel


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


def bytes_of(folder: Path, model: GgufFiles) -> int:
    """Return the size of a model's files."""
    return sum((folder / file).stat().st_size for file in model.files)
