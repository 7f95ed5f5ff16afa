"""The native matrix product beyond its cases: rows alone, threads, strides, bad numbers, lookup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.cpu.program import Pool, record
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.cases_vectors import VectorKind, make_vectors
from dovetail_kernels.gemm.matrix import Matrix, multiply_groups
from dovetail_kernels.gemm.native import Packed, multiply_beside
from dovetail_kernels.gemm.weight import (
    FORMATS,
    Weight,
    join,
    quantize_int4,
    quantize_int8,
    rounded_inputs,
    rounds_to_int8,
    spelled_out,
)

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

ROWS = 61


@pytest.fixture
def threads() -> Iterator[None]:
    native = library()
    assert native is not None
    before = native.num_threads()
    yield
    native.set_threads(before)


def inputs(rows: int, size: int = 200) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_is_the_same_in_any_batch(format: str) -> None:
    packed = Packed(make_weight(format, 90, 200))
    x = inputs(ROWS)
    whole = packed(x)
    for size in (1, 2, 3, 7, 12, 13, 25, 48):
        assert torch.equal(packed(x[:size].contiguous()), whole[:size])


INTEGERS = [f for f in FORMATS if rounds_to_int8(f)]
HAS_WORDS = library() is not None and library().isa == "avx2"  # type: ignore[union-attr]
"""Whether 8-bit weights meet activations of 16 bits: AVX2 multiplies those as fast as bytes."""
GROUPED: list[tuple[str, dict[str, Any]]] = [
    (format, options)
    for format in INTEGERS
    for options in (
        {},
        {"group": 48, "is_symmetric": False},
        {"group": 128, "is_symmetric": False},
        {"group": 32, "run": 256},
        {"group": 16, "run": 256},
    )
    if not (options and format == "int8")
    and not (format.startswith(("trits", "vectors")) and options.get("group", 32) % 32)
]


def rounded(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return rows rounded to 127 levels of the largest of every `size` inputs (0: of a row)."""
    size = size or x.shape[1]
    parts = torch.nn.functional.pad(x, (0, -x.shape[1] % size)).view(len(x), -1, size)
    peaks = parts.abs().amax(dim=2, keepdim=True)
    factors = torch.full_like(peaks, 127.0) / peaks  # 127.0 / peaks is rounded twice
    levels = (parts * torch.where(peaks > 0, factors, 0.0)).round()
    return (levels * (peaks / 127.0)).view(len(x), -1)[:, : x.shape[1]]


def with_outlier(rows: int, size: int) -> torch.Tensor:
    x = inputs(rows, size)
    x[:, 5] *= 60
    return x


@pytest.mark.parametrize(("format", "options"), GROUPED, ids=str)
def test_activations_are_rounded_in_groups(format: str, options: dict[str, Any]) -> None:
    """An input sixty times as large as the others costs only those it shares a scale with."""
    weight = make_weight(format, 70, 616, **options)
    matrix = weight.dequantize().double().T
    for rows in (1, 2, 7, 40):
        x = with_outlier(rows, 616)
        found = Packed(weight)(x)
        if HAS_WORDS and format in ("int8", "int8_int8"):
            assert torch.allclose(found, (x.double() @ matrix).float(), rtol=1e-3, atol=5e-3)
            continue
        expected = (rounded(x, rounded_inputs(weight)).double() @ matrix).float()
        assert torch.allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("format", [f for f in INTEGERS if not f.startswith(("vec", "trits"))])
def test_activations_of_a_row_share_a_scale_where_the_weight_says_so(format: str) -> None:
    weight = replace(make_weight(format, 70, 616), has_token_scales=True)
    for rows in (1, 7, 40):
        x = with_outlier(rows, 616)
        expected = (rounded(x, 0).double() @ weight.dequantize().double().T).float()
        assert torch.allclose(Packed(weight)(x), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("format", ["int8", "int8_int8"])
def test_sums_of_the_largest_numbers_fit(format: str) -> None:
    """Every weight and every input at its limit, in one group that is all of a long row."""
    size = 1 << 14
    values = torch.full((40, size), 127, dtype=torch.int8)
    scales = torch.ones(40) if format == "int8" else torch.ones(40, 1)
    weight = Weight(
        format=format, values=values, scales=scales, group=0 if format == "int8" else size
    )
    found = Packed(weight)(torch.full((3, size), 2.0))
    assert torch.allclose(found, torch.full((3, 40), 127.0 * 2 * size), rtol=1e-5)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.usefixtures("threads")
def test_threads_change_nothing(format: str) -> None:
    packed = Packed(make_weight(format, 300, 200))
    native = library()
    assert native is not None
    x = inputs(ROWS)
    results = []
    for count in (1, 2, 5):
        assert native.set_threads(count, spin_us=0 if count == 5 else 50) == count
        results += [packed(x) for _ in range(20)]
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("format", ["float32", "bfloat16_bfloat16", "int8", "int4_int8"])
def test_a_row_that_is_not_finite_spoils_itself_alone(format: str) -> None:
    packed = Packed(make_weight(format, 40, 64))
    x = inputs(8, 64)
    clean = packed(x)
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoilt = x.clone()
        spoilt[3, 17] = bad
        found = packed(spoilt)
        assert not found[3].isfinite().any()
        kept = [0, 1, 2, 4, 5, 6, 7]
        assert torch.equal(found[kept], clean[kept])


def test_zero_rows_and_a_row_of_zeros() -> None:
    for format in FORMATS:
        packed = Packed(make_weight(format, 40, 64))
        assert packed(torch.empty(0, 64)).shape == (0, 40)
        assert torch.equal(packed(torch.zeros(2, 64)), torch.zeros(2, 40))


def test_rows_of_x_may_lie_apart() -> None:
    packed = Packed(make_weight("int8", 40, 64))
    wide = inputs(9, 200)
    part = wide[:, 50:114]
    assert torch.equal(packed(part), packed(part.contiguous()))


def test_residual_may_be_its_own() -> None:
    packed = Packed(make_weight("bfloat16", 40, 64))
    x, residual = inputs(5, 64), inputs(5, 40)
    assert torch.allclose(packed(x, None, residual), packed(x) + residual)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_looked_up(format: str) -> None:
    weight = make_weight(format, 90, 200)
    index = torch.tensor([89, 0, 31, 32, 33, 0])
    found = Packed(weight).rows(index)
    assert torch.allclose(found, weight.rows(index), atol=1e-6)
    assert torch.equal(weight.rows(index), weight.dequantize()[index])
    part = Packed(weight).rows(torch.tensor([99, 100, 139, 189, 190]), first=100)
    assert torch.equal(part, Packed(weight).rows(torch.tensor([-1, 0, 39, 89, 90])))
    assert not part[[0, 4]].any() and torch.equal(part[1], found[1])


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
@pytest.mark.parametrize("end", ["", "_int8"])
def test_narrow_values_take_their_bits(bits: int, end: str) -> None:
    packed = Packed(make_weight(f"int{bits}{end}", 64, 160))
    assert packed.data.nbytes == 64 * 160 * bits // 8


def test_codes_of_four_bits_share_a_byte_and_others_do_not() -> None:
    """Two bits a value beside scales and offsets of a byte each would be half of the weight."""
    small = make_weight("int2_int8", 64, 512, group=16, run=256)
    assert small.scales is not None
    assert Packed(small).offsets is None
    wide = replace(small, scales=small.scales - 1)
    packed = Packed(wide)
    assert packed.offsets is not None
    index = torch.arange(64)
    for weight in (small, wide):
        assert torch.allclose(Packed(weight).rows(index), weight.dequantize(), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "run"),
    [(VectorKind(code_bits=10), 256), (VectorKind(code_bits=9), 0),
     (VectorKind(size=4, code_bits=12), 0), (VectorKind(books=2, code_bits=8), 0)],
)  # fmt: skip
@pytest.mark.parametrize("is_gated", [True, False])
def test_vectors_take_the_bits_of_their_codes(kind: VectorKind, run: int, is_gated: bool) -> None:
    weight = make_vectors("vectors", 64, 512, group=32 if run else 512, run=run, kind=kind)
    packed = Packed(weight, is_gated=is_gated)
    bits = kind.code_bits * max(1, kind.books) / kind.size + (weight.signs is not None)
    assert packed.data.nbytes == 64 * 512 * bits / 8
    factors = 64 * (512 / 32 / 2 + 2 * 512 / 256 + 4) if run else 64 * 2
    points = 2 * 256 * 8 * 2 if kind.books else 0
    assert packed.num_bytes == packed.data.nbytes + factors + points
    wide = spelled_out(weight, torch.float32)
    assert wide.points is None
    assert torch.equal(wide.dequantize(), weight.dequantize())


def test_trits_lie_five_in_a_byte() -> None:
    packed = Packed(make_weight("trits_int8", 64, 640, group=128))
    assert packed.data.nbytes == 64 * 640 // 5


def test_matrices_of_other_points_are_not_joined() -> None:
    one = make_weight("vectors", 40, 96)
    other = replace(one, points=one.points + 1)  # type: ignore[operator]
    assert join([one, other]) is None
    joined = join([one, one])
    assert joined is not None
    assert torch.equal(joined.dequantize(), torch.cat([one.dequantize()] * 2))


@pytest.mark.parametrize("format", ["trits", "trits_int8"])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_trits_spelled_out_mean_the_same(format: str, is_symmetric: bool) -> None:
    weight = make_weight(format, 40, 96, is_symmetric=is_symmetric)
    wider = spelled_out(weight, torch.float32)
    assert wider.format == format.replace("trits", "int2")
    assert torch.equal(wider.dequantize(), weight.dequantize())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_bias_of_each_row_is_that_rows(format: str, is_gated: bool) -> None:
    """The same bits as one for all rows, which a call after it has again."""
    packed = Packed(make_weight(format, 90, 200), is_gated=is_gated)
    x, biases = inputs(5), inputs(5, 90)
    found = packed(x, biases, None, "silu")
    for row in range(5):
        wanted = packed(x[row : row + 1], biases[row], None, "silu")
        assert torch.equal(found[row : row + 1], wanted)
    assert torch.equal(packed(x, biases[:1].expand(5, -1).contiguous()), packed(x, biases[0]))


def test_a_recorded_product_follows_the_bias_of_each_row() -> None:
    packed = Packed(make_weight("bfloat16", 90, 200), is_gated=True)
    x, biases = inputs(8), inputs(8, 90)
    with torch.inference_mode():
        program = record(lambda: packed(x, biases, None, "silu"), Pool(), owner=(x, biases))
        packed(x, biases[0])
        for _ in range(2):
            assert torch.equal(program.run(), packed(x, biases, None, "silu"))
            biases.copy_(inputs(9, 90)[1:])


def test_matrices_beside_each_other_are_one_recorded_product() -> None:
    """Parts of a fused layer in different formats: no torch operator joins them."""
    weights = [make_weight(f, n, 96) for f, n in (("int4_int8", 50), ("int6_int8", 24))]
    packed = [Packed(weight) for weight in weights]
    x, bias, residual = inputs(3, 96), inputs(1, 74)[0], inputs(3, 74)
    program = record(lambda: multiply_beside(packed, x, bias, residual), Pool())
    expected = torch.cat([one(x) for one in packed], dim=1) + bias + residual
    assert torch.allclose(program.run(), expected, atol=1e-5)


@pytest.mark.parametrize("format", ["float32", "bfloat16_bfloat16", "int8", "int4_int8"])
def test_groups_equal_single_products(format: str) -> None:
    weights = [make_weight(format, 48, 64) for _ in range(4)]
    weights = [replace(w, values=w.values.roll(i, 0)) for i, w in enumerate(weights)]
    matrices = [Matrix(w, device="cpu", dtype=torch.float32, is_gated=True) for w in weights]
    counts, x = [3, 0, 14, 1], inputs(18, 64)
    found = multiply_groups(matrices, x, counts, "silu")
    parts = zip(matrices, x.split(counts), strict=True)
    assert torch.equal(found, torch.cat([m.multiply(p, activation="silu") for m, p in parts]))


def test_int8_error_is_that_of_its_grid() -> None:
    """Rounding to the nearest of 255 levels: no weight is off by more than half a step."""
    wide = inputs(30, 64)
    weight = quantize_int8(wide)
    assert weight.scales is not None
    steps = (weight.dequantize() - wide).abs() / weight.scales.unsqueeze(1)
    assert steps.max() <= 0.5 + 1e-4


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_int4_error_is_that_of_its_grid(is_symmetric: bool) -> None:
    wide = inputs(30, 100)
    weight = quantize_int4(wide, 32, is_symmetric=is_symmetric)
    assert weight.scales is not None
    scales = weight.scales.float().abs().repeat_interleave(32, dim=1)[:, :100]
    steps = (weight.dequantize() - wide).abs() / scales
    # One level is missing on the side away from the peak; the zero point is rounded.
    assert steps.max() <= 1.1
    assert steps.median() <= 0.3
