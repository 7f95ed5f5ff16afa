"""Matrices of heads that are bytes under scales stay so, and multiply as the floats meant."""

from __future__ import annotations

import pytest
import torch

from dovetail_kernels.cpu.library import Library, library
from dovetail_kernels.head_products.matrices import HeadMatrices
from dovetail_kernels.head_products.native import BY_INPUTS, BY_OUTPUTS, HeadProducts, in_bytes
from dovetail_kernels.head_products.reference import reference
from dovetail_kernels.random import normal

if (LIBRARY := library()) is None:
    pytest.skip("no native library", allow_module_level=True)

CPU = torch.device("cpu")


def quantized(heads: int, inner: int, outer: int, axis: int) -> torch.Tensor:
    """Return matrices as a quantized checkpoint means them, their scales in float16 as GGUF's."""
    wide = normal((heads, inner, outer), torch.float32, CPU, seed=1).unflatten(axis, (-1, 32))
    most = wide.abs().amax(axis + 1, keepdim=True)
    codes = (wide / most * 127).round()
    return (codes * (most / 127).half().float()).flatten(axis, axis + 1)


@pytest.mark.parametrize("isa", LIBRARY.isas())
@pytest.mark.parametrize(
    ("groups", "axis", "shape"),
    [
        (BY_OUTPUTS, 2, (3, 12, 128)),
        (BY_INPUTS, 1, (3, 96, 70)),
        (BY_OUTPUTS, 2, (16, 128, 512)),
        (BY_INPUTS, 1, (16, 512, 128)),
    ],
)
def test_products(groups: str, axis: int, shape: tuple[int, int, int], isa: str) -> None:
    weight = quantized(*shape, axis)
    products = HeadProducts(weight, Library(LIBRARY.path, isa), may_be_bytes=True)
    panels = -(-shape[2] // 64)
    assert in_bytes(weight, groups) is not None and products.weight.dtype is torch.int8
    assert products.weight.shape == (shape[0], panels, 72 * shape[1])
    for tokens in (1, 6):
        x = normal((tokens, shape[0], shape[1] + 5), torch.float32, CPU, seed=2)
        wanted = reference(x.double(), weight.double())
        assert (products(x) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_other_numbers_stay_floats() -> None:
    """One number between two codes, or groups along the other axis, make no bytes."""
    weight = quantized(2, 32, 64, 2)
    assert in_bytes(weight, BY_OUTPUTS) is not None
    assert in_bytes(weight, BY_INPUTS) is None
    weight[1, 3, 40] *= 1.001
    assert in_bytes(weight, BY_OUTPUTS) is None
    kept = HeadMatrices(weight, dtype=torch.float32)
    assert kept.tensor.dtype is torch.float32
