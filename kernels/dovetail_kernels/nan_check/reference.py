"""The definition of nan_check in torch."""

from __future__ import annotations

import torch


def reference(bits: torch.Tensor, infinity: int) -> torch.Tensor:
    """Return whether a value is not a number. Shapes: bits [N] -> [] bool"""
    return ((bits & torch.iinfo(bits.dtype).max) > infinity).any()
