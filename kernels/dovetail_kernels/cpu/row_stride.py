"""Where rows lie that a native kernel reads."""

from __future__ import annotations

import torch


def row_stride(x: torch.Tensor) -> int:
    """Return how many numbers lie from one row to the next. Shapes: x [M, K]

    Raises: ValueError where the numbers of a row lie apart, which a kernel would read as if they
    did not
    """
    stride, step = x.stride()
    if step != 1 and x.shape[1] != 1:
        raise ValueError(
            f"the numbers of a row lie {step} apart, and kernels read them side by side"
            " (x.contiguous() makes them so)"
        )
    return stride
