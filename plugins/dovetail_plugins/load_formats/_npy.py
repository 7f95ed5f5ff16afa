"""Tensors as .npy files; dtypes numpy lacks (bfloat16, float8) are stored as plain bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail.errors import ConfigError
from dovetail.layers.dtypes import dtype_name, dtype_of

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16}


def save_tensor(folder: Path, file: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Write one tensor; return its manifest entry."""
    foreign = tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    plain = tensor.view(_AS_INTEGERS[tensor.dtype.itemsize]) if foreign else tensor
    np.save(folder / file, plain.cpu().numpy(), allow_pickle=False)
    return {"file": file, "dtype": dtype_name(tensor.dtype), "bytes": tensor.nbytes}


def map_tensor(path: Path, dtype: str) -> torch.Tensor:
    """Return a mapped tensor; writing to it does not reach the file. Raises: ConfigError."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        tensor = torch.from_numpy(array)
        return tensor if dtype_name(tensor.dtype) == dtype else tensor.view(dtype_of(dtype))
    except Exception as error:
        # numpy and torch raise many types for a damaged header; all mean this one file.
        raise ConfigError(
            f"the numpy cache is damaged: {error}",
            where=str(path),
            fix="delete the cache's folder; it is written again.",
        ) from error
