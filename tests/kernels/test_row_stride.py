"""Rows whose numbers lie apart are refused by the kernels that read them side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dovetail_kernels.cpu.library import missing_reason
from dovetail_kernels.cpu.row_stride import row_stride
from dovetail_kernels.gemm.native import Packed, multiply_groups
from dovetail_kernels.gemm.weight import Weight
from dovetail_kernels.layer_norm.native import LayerNorm
from dovetail_kernels.rms_norm.native import RmsNorm

pytestmark = pytest.mark.skipif(missing_reason() is not None, reason="no native library")

SIZE = 16


def packed() -> Packed:
    return Packed(Weight(format="float32", values=torch.ones(8, SIZE)))


def test_rows_may_lie_apart() -> None:
    x = torch.randn(5, 2 * SIZE)[:, :SIZE]
    assert row_stride(x) == 2 * SIZE
    torch.testing.assert_close(packed()(x), x.sum(1, keepdim=True).expand(5, 8))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: packed()(x),
        lambda x: packed().halves(x),
        lambda x: multiply_groups([packed()], x, [len(x)]),
        lambda x: LayerNorm(SIZE, eps=1e-5)(x, None, None),
        lambda x: RmsNorm(SIZE, eps=1e-5)(x, torch.ones(SIZE)),
        lambda x: RmsNorm(SIZE, eps=1e-5)(x.contiguous(), torch.ones(SIZE), delta=x),
    ],
)
def test_numbers_of_a_row_may_not(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="lie 5 apart"):
        run(torch.randn(SIZE, 5).T)


def test_one_number_lies_where_it_lies() -> None:
    assert row_stride(torch.randn(4, 6)[:, ::6]) == 6
