"""Interpreted dots: sums in the order of the inputs, whatever the shape and the BLAS of numpy.

Whether kernels are interpreted is decided when Triton is imported, so this file is also a script.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dovetail_kernels.gpu import interprets
from dovetail_kernels.gpu.interpreter import matmul
from support.interpreted_script import AS_WANTED, verify_interpreted

triton = pytest.importorskip("triton")
tl: Any = pytest.importorskip("triton.language")
INPUTS = 128


@triton.jit
def dot(a, b, out, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(left, right))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def in_order(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, each sum made in Python."""
    total = torch.zeros(len(a), b.shape[1])
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def test_matmul_is_one_sum_in_order() -> None:
    a, b = drawn(37, INPUTS), drawn(INPUTS, 24)
    wanted = in_order(a, b).numpy()
    assert np.array_equal(matmul(a.numpy(), b.numpy(), np.float32), wanted)
    assert np.array_equal(matmul(a[5:6].numpy(), b.numpy(), np.float32), wanted[5:6])
    assert np.array_equal(matmul(b.T.numpy(), a.T.numpy(), np.float32), wanted.T)


def test_matmul_takes_narrow_numbers_and_leading_axes() -> None:
    a, b = drawn(3, 5, 16).half(), drawn(3, 16, 4).half()
    wanted = torch.stack([in_order(*pair) for pair in zip(a.float(), b.float(), strict=True)])
    assert np.array_equal(matmul(a.numpy(), b.numpy(), np.float32), wanted.numpy())
    codes = torch.randint(-128, 128, (4, 300), generator=torch.Generator().manual_seed(0))
    codes = codes.to(torch.int8)
    products = matmul(codes.numpy(), codes.T.numpy(), np.int32)
    assert np.array_equal(products, (codes.int() @ codes.int().T).numpy())


def test_interpreted_dots_are_made_so() -> None:
    verify_interpreted(__file__, limit_s=200)


def main() -> None:
    """Compare the kernel with sums made in Python, to the bit, for several heights of a tile."""
    assert interprets()
    a, b = drawn(64, INPUTS), drawn(INPUTS, 32)
    wanted = in_order(a, b)
    for rows in (16, 32, 64):
        out = torch.empty(rows, 32)
        dot[(1,)](a, b, out, rows, INPUTS, 32)
        assert torch.equal(out, wanted[:rows]), rows
    print(AS_WANTED)


if __name__ == "__main__":
    main()
