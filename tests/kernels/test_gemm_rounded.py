"""Products of activations rounded to bfloat16 with small floats and integers, against torch's of
the rounded activations: what is exact in bfloat16 stays exact, scales are not rounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.gemm.cases import PLANES, make_weight
from dovetail_kernels.gemm.matrix import Matrix, multiplies_pairs
from dovetail_kernels.gemm.native import ROUNDED, Packed
from dovetail_kernels.gemm.weight import Weight

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

NF4_LIKE = torch.linspace(-1, 1, 16) ** 3
"""A table that bfloat16 does not hold."""
CASES: list[tuple[str, dict[str, Any]]] = [
    *((f, {}) for f in ROUNDED),
    *((f, {"group": 24, "is_symmetric": False}) for f in ("int4", "int8_float32")),
    *((f, {"group": 48, "is_symmetric": False}) for f in PLANES if f in ROUNDED),
    *((f, {"group": 32, "run": 256}) for f in ("int2", "int4", "int8_float32")),
    ("float8", {"group": 8}),
    ("float8", {"group": 296}),  # more inputs than are pairs at a time, and no multiple of them
    ("table4", {"group": 16}),
]


def inputs(rows: int, size: int) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows))


def wanted(weight: Weight, x: torch.Tensor) -> torch.Tensor:
    if weight.table is not None:
        weight = replace(weight, table=weight.table.bfloat16().float())
    return (x.bfloat16().double() @ weight.dequantize().double().T).float()


@pytest.mark.parametrize(("format", "options"), CASES)
def test_only_what_is_said_is_rounded(format: str, options: dict[str, Any]) -> None:
    for size in (76, 600):
        weight = make_weight(format, 70, size, **options)
        packed = Packed(weight, rounds_activations=True)
        for rows in (1, 5, 13):
            x = inputs(rows, size)
            assert torch.allclose(packed(x), wanted(weight, x), rtol=2e-5, atol=2e-5)


def test_values_of_a_table_are_rounded() -> None:
    weight = replace(make_weight("table4", 40, 64), table=NF4_LIKE)
    x = inputs(7, 64)
    found = Packed(weight, rounds_activations=True)(x)
    assert torch.allclose(found, wanted(weight, x), rtol=2e-5, atol=2e-5)
    assert not torch.allclose(found, x.bfloat16().float() @ weight.dequantize().T, rtol=1e-4)


@pytest.mark.parametrize("format", ROUNDED)
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_a_row_is_the_same_in_any_batch(format: str, is_symmetric: bool) -> None:
    packed = Packed(
        make_weight(format, 90, 600, is_symmetric=is_symmetric), rounds_activations=True
    )
    x = inputs(61, 600)
    whole = packed(x)
    for size in (1, 2, 7, 13, 48):
        assert torch.equal(packed(x[:size].contiguous()), whole[:size])


def test_a_matrix_rounds_where_pairs_are_multiplied_and_it_may() -> None:
    weight = make_weight("float8", 40, 64)
    for may in (True, False):
        matrix = Matrix(weight, device="cpu", dtype=torch.float32, rounds_activations=may)
        assert isinstance(matrix.packed, Packed)
        assert matrix.packed.rounds_activations == (may and multiplies_pairs(in_groups=True))
