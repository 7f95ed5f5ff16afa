"""The row layout that native kernels read."""

from __future__ import annotations

import torch


def row_stride(x: torch.Tensor) -> int:
    """Return the stride between rows, in numbers. Shapes: x [M, K]

    Raises: ValueError if a row is not contiguous: a kernel would read it as if it were
    """
    stride, step = x.stride()
    if step != 1 and x.shape[1] != 1:
        raise ValueError(
            f"the numbers of a row lie {step} apart, and kernels read them side by side"
            " (x.contiguous() makes them so)"
        )
    return stride
