"""Fresh host memory that is soon written from end to end."""

from __future__ import annotations

import numpy as np
import torch


def fresh_tensor(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of so many numbers, which may be anything.

    numpy asks Linux for pages of 2 MiB where much is wanted, and torch does not: what is written
    for the first time is then half as expensive. Shapes: [size]
    """
    return torch.from_numpy(np.empty(size * dtype.itemsize, dtype=np.uint8)).view(dtype)
