"""One torch.save file as a dict of tensors. Anything else in it is refused, never run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from dovetail.errors import ConfigError


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return name -> tensor. Raises: ConfigError when the file is cut, or holds more than tensors.

    Files of the zip kind are mapped; older ones are read whole.
    """
    try:
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:
        # torch raises many types here, down to EOFError; all of them mean this one file.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"cannot be read as tensors only: {reason}",
            where=str(path),
            fix="download the file again, or convert the checkpoint to safetensors",
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"holds a {type(content).__name__}, not named tensors", where=str(path))
    strange = [name for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise ConfigError(
            f'entry "{strange[0]}" is a {type(content[strange[0]]).__name__}, not a tensor',
            where=str(path),
            fix="save the model's state_dict alone",
        )
    return {str(name): tensor for name, tensor in content.items()}
