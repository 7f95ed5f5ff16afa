"""Safetensors files written part by part, so that no more than one part is in memory.

A part is written under another name and moved to its own when it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from dovetail.errors import ConfigError

PART_BYTES = 2 * 2**30


def write_parts(
    path_of: Callable[[int], Path],
    tensors: Iterable[tuple[str, torch.Tensor]],
    metadata: Mapping[str, str],
    *,
    part_bytes: int = PART_BYTES,
    names: dict[str, int] | None = None,
) -> int:
    """Write the tensors into the files path_of(0), path_of(1), ...; return the bytes of all.

    `names` takes the part of every tensor. Mutates: names
    Raises: ConfigError when a file cannot be written.
    """
    written, number = 0, 0
    pending: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if pending and sum(t.nbytes for t in pending.values()) + tensor.nbytes > part_bytes:
            written += _write(path_of(number), pending, metadata)
            pending, number = {}, number + 1
        pending[name] = tensor.contiguous().cpu()
        if names is not None:
            names[name] = number
    return written + (_write(path_of(number), pending, metadata) if pending else 0)


def write_indexed(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], index: str) -> int:
    """Write model-00001.safetensors and so on with their index, or a single model.safetensors.

    Returns: the bytes of the weights. Raises: ConfigError when a file cannot be written.
    """
    parts: dict[str, int] = {}

    def path_of(part: int) -> Path:
        return folder / f"model-{part + 1:05}.safetensors"

    written = write_parts(path_of, tensors, {}, names=parts)
    if not any(parts.values()):
        path_of(0).replace(folder / "model.safetensors")
        return written
    weight_map = {name: path_of(part).name for name, part in parts.items()}
    content = {"metadata": {"total_size": written}, "weight_map": weight_map}
    (folder / index).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return written


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: Mapping[str, str]) -> int:
    unfinished = path.with_name(f".{path.name}.part")
    try:
        # Tied or sliced tensors share memory, which the writer refuses: give each its own.
        save_file(_separate(tensors), unfinished, metadata={"format": "pt", **metadata})
        unfinished.chmod(0o644)  # the library makes them readable only for their owner
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot be written: {error}", where=str(path), fix="choose another --out."
        ) from error
    return path.stat().st_size


def _separate(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, copied if another one shares their memory."""
    owners: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in owners else tensor
        owners.add(place)
    return apart
