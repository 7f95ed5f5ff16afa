"""A *.tensors file, written by the tensorizer package. Source: its README."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tensorizer import TensorSerializer

from dovetail.errors import ConfigError


def write_file(path: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Write all tensors into one file; return its bytes. Raises: ConfigError."""
    unfinished = path.with_name(f".{path.name}.part")
    try:
        writer = TensorSerializer(str(unfinished))
        # The package makes room for its index once: it has to be given all tensors together.
        writer.write_state_dict(dict(tensors))
        writer.close()
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot be written: {error}", where=str(path), fix="choose another --out."
        ) from error
    return path.stat().st_size
