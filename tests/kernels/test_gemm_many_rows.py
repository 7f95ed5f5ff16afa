"""Native products of many rows, which tiles multiply where there are some: the bits of few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.matrix import Matrix, multiply_groups
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.weight import FORMATS, rounds_to_int8

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

OUTPUTS = 150
"""Five panels where one has 32 outputs: four that are multiplied at once, and a part of one."""
FEW = 11
INTEGERS = [f for f in FORMATS if rounds_to_int8(f) and not f.startswith(("vec", "trits"))]
OPTIONS: tuple[dict[str, Any], ...] = (
    {"group": 32},
    {"group": 48, "is_symmetric": False},
    {"group": 64},
    {"group": 96},
    {"group": 128, "is_symmetric": False},
    {"group": 1024, "is_symmetric": False},
    {"group": 16, "run": 256},
    {"group": 32, "run": 256},
)
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("bfloat16_bfloat16", {}),
    ("int8", {}),
    *((format, options) for format in INTEGERS for options in OPTIONS if format != "int8"),
]


@pytest.fixture(autouse=True, params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    native = library()
    assert native is not None
    before = native.num_threads()
    native.set_threads(request.param)
    yield
    native.set_threads(before)


def inputs(rows: int, size: int) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows))


def by_few(packed: Packed, x: torch.Tensor, **ends: Any) -> torch.Tensor:
    """Return a product that is made of some rows at a time."""
    return torch.cat([packed(part.contiguous(), **ends) for part in x.split(FEW)])


@pytest.mark.sampled
@pytest.mark.few_isa
@pytest.mark.parametrize("size", [72, 616, 1040, 1536])
@pytest.mark.parametrize(("format", "options"), KINDS, ids=str)
def test_many_rows_have_the_bits_of_few(format: str, options: dict[str, Any], size: int) -> None:
    weight = make_weight(format, OUTPUTS, size, **options)
    for has_token_scales in (False, True)[: 1 + rounds_to_int8(format)]:
        packed = Packed(replace(weight, has_token_scales=has_token_scales))
        for rows in (95, 96, 113, 200):
            x = inputs(rows, size)
            assert torch.equal(packed(x), by_few(packed, x)), (has_token_scales, rows)


@pytest.mark.parametrize("format", ["bfloat16_bfloat16", *INTEGERS])
def test_ends_of_many_rows_are_those_of_few(format: str) -> None:
    packed = Packed(make_weight(format, 300, 616), is_gated=True)
    x, bias = inputs(530, 616), inputs(1, 300)[0]
    assert torch.equal(
        packed(x, bias, None, "silu"), by_few(packed, x, bias=bias, activation="silu")
    )


@pytest.mark.parametrize("format", ["bfloat16_bfloat16", *INTEGERS])
def test_a_row_that_is_not_finite_spoils_itself_alone(format: str) -> None:
    packed = Packed(make_weight(format, OUTPUTS, 616))
    x = inputs(120, 616)
    clean = packed(x)
    x[37, 40] = float("nan")
    found = packed(x)
    others = torch.arange(120) != 37
    assert found[37].isnan().all()
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("format", ["bfloat16_bfloat16", "int4_int8", "int6_int8", "int8_int8"])
def test_groups_of_many_and_of_few_rows_equal_single_products(format: str) -> None:
    weights = [make_weight(format, OUTPUTS, 616) for _ in range(5)]
    weights = [replace(w, values=w.values.roll(i, 0)) for i, w in enumerate(weights)]
    matrices = [Matrix(w, device="cpu", dtype=torch.float32) for w in weights]
    counts, x = [130, 3, 0, 97, 40], inputs(270, 616)
    found = multiply_groups(matrices, x, counts)
    parts = zip(matrices, x.split(counts), strict=True)
    assert torch.equal(found, torch.cat([m.multiply(p) for m, p in parts]))
