"""Triton's interpreter with dot products that are the same bits on every machine.

Triton interprets a dot by numpy's matmul, whose BLAS picks the order of a sum by the processor and
by the shapes: a row alone is then not the row in a batch, whatever the kernel does. On a GPU that
order follows from the tile's inputs alone, and so it does here. Knows no kernel; needs Triton.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.generic]


def matmul(a: Numbers, b: Numbers, dtype: npt.DTypeLike) -> Numbers:
    """Return a @ b: each number one sum over the inputs in order, every step rounded to `dtype`.

    Shapes: a [..., M, K], b [..., K, N] -> [..., M, N]
    """
    a, b = a.astype(dtype), b.astype(dtype)
    total = np.zeros(np.broadcast_shapes(a[..., :1].shape, b[..., :1, :].shape), dtype)
    product = np.empty_like(total)
    for k in range(a.shape[-1]):
        np.multiply(a[..., k : k + 1], b[..., k : k + 1, :], out=product)
        total += product
    return total


def sum_in_order() -> None:
    """Make this process's interpreter sum its dots by `matmul`."""
    from triton.runtime import interpreter

    numpy = ModuleType(np.__name__)
    vars(numpy).update(vars(np) | {"matmul": matmul})
    interpreter.np = numpy
