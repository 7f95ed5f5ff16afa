"""Norms, head rotation, look-ups and gates on the native library, on every instruction set here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from dovetail_kernels import load_op
from dovetail_kernels.check import check_case
from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.embedding.native import LookUp
from dovetail_kernels.gated_activation.native import Gate
from dovetail_kernels.layer_norm.native import LayerNorm
from dovetail_kernels.qk_rotary.native import QkRotary
from dovetail_kernels.rms_norm.native import RmsNorm
from dovetail_kernels.scaled_copy.native import scaled_copies
from dovetail_kernels.scaled_copy.reference import reference as scaled_copy_in_torch

NATIVE = library()
ISAS = NATIVE.isas() if NATIVE else ["none"]
OPS = (
    "rms_norm", "layer_norm", "qk_rotary", "embedding", "gated_activation", "product",
    "scaled_copy",
)  # fmt: skip
CPU = torch.device("cpu")
ROWS, SIZE = 90, 333
pytestmark = pytest.mark.skipif(NATIVE is None, reason=str(missing_reason()))


@pytest.fixture(params=ISAS)
def source(request: pytest.FixtureRequest) -> Library:
    assert NATIVE is not None
    return Library(NATIVE.path, request.param)


@pytest.fixture
def threads(source: Library) -> Iterator[Callable[[int], int]]:
    before = source.num_threads()
    yield source.set_threads
    source.set_threads(before)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", OPS)
def test_cases(source: Library, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("dovetail_kernels.cpu.library.library", lambda: source)
    op = load_op(name)
    faults = {c.name: check_case(op, c, "native", CPU) for c in op.cases()}
    assert {case: fault for case, fault in faults.items() if fault} == {}
    assert any(not op.reasons_against(i, "cpu", torch.float32) for i in op.implementations)


@pytest.mark.parametrize("layout", ["rows", "turned", "any"])
def test_a_copy_tells_which_matrix_is_not_finite(
    source: Library, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr("dovetail_kernels.cpu.library.library", lambda: source)
    floats = (torch.float32, torch.bfloat16, torch.float16)
    values = (float("nan"), float("inf"), float("-inf"), 3.4e38, -3.4e38, 65519.0, 65520.0)
    found = {}
    for target, value in itertools.product(floats, values):
        matrices = normal(4, 37, 21, seed=1)
        matrices[2, 36, 20] = value
        targets = {
            "rows": torch.zeros(4, 37, 21, dtype=target),
            "turned": torch.zeros(4, 21, 37, dtype=target).mT,
            "any": torch.zeros(4, 37, 42, dtype=target)[:, :, ::2],
        }[layout]
        scales = [3.0, 2.0, 1.0, 0.5]
        wanted = int(scaled_copy_in_torch(matrices, targets.clone(), scales))
        found[target, value] = int(scaled_copies(matrices, targets, scales)), wanted
    assert {case: pair for case, pair in found.items() if pair[0] != pair[1]} == {}
    assert {pair[0] for pair in found.values()} == {-1, 2}


def by_rows(source: Library) -> dict[str, Callable[[torch.Tensor, int], torch.Tensor]]:
    """Functions of rows [T, SIZE] and the number of the first of them."""
    norm = RmsNorm(SIZE, eps=1e-6, offset=1.0, source=source)
    layer = LayerNorm(SIZE, eps=1e-5, source=source)
    turn = QkRotary(2, 1, 30, eps=1e-6, source=source)
    gates = {act: Gate(act, source=source) for act in ("silu", "gelu", "gelu_tanh", "relu2")}
    weight, bias, delta = (normal(SIZE, seed=s) for s in (2, 3, 4))
    cos, sin = normal(ROWS, 11, seed=5), normal(ROWS, 11, seed=6)

    def turned(x: torch.Tensor, first: int) -> torch.Tensor:
        qkv = x[:, :120].clone()
        turn(qkv, cos, sin, torch.arange(first, first + len(x)), weight[:30], bias[:30])
        return qkv

    return {
        "rms": lambda x, first: norm(x, weight),
        "rms_delta": lambda x, first: norm(x.clone(), weight, delta.expand(len(x), -1), x),
        "layer": lambda x, first: layer(x, weight, bias),
        "turn": turned,
        **{act: lambda x, first, g=gate: g(x[:, :332]) for act, gate in gates.items()},
    }


def test_a_row_is_its_own(source: Library, threads: Callable[[int], int]) -> None:
    """Alone, beside others, on one thread or three: the same bits."""
    x = normal(ROWS, SIZE, seed=1)
    for name, function in by_rows(source).items():
        threads(3)
        together = function(x, 0)
        threads(1)
        assert torch.equal(function(x, 0), together), name
        for row in (0, 1, 47, ROWS - 1):
            assert torch.equal(function(x[row : row + 1], row)[0], together[row]), name


def test_norms_equal_torch(source: Library) -> None:
    x, weight, bias = normal(5, SIZE, seed=1), normal(SIZE, seed=2), normal(SIZE, seed=3)
    ours = RmsNorm(SIZE, eps=1e-6, source=source)(x, weight)
    torch.testing.assert_close(ours, F.rms_norm(x, (SIZE,), weight, 1e-6), rtol=1e-6, atol=1e-6)
    ours = LayerNorm(SIZE, eps=1e-5, source=source)(x, weight, bias)
    theirs = F.layer_norm(x, (SIZE,), weight, bias, 1e-5)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=2e-6)


def test_gelu_is_as_exact_as_torch_and_keeps_its_ends(source: Library) -> None:
    """Within five roundings of the input's size everywhere; x or nothing far from 0; NaN."""
    near = torch.cat([torch.linspace(-9, 9, 200_001), torch.logspace(-30, 0, 301)])
    ends = torch.tensor([-1e30, -1e4, -9.0, 9.0, 1e4, 1e30, float("inf"), float("nan")])
    gate = Gate("gelu", source=source)
    exact = F.gelu(near.double())
    off = (gate(torch.cat([near, torch.ones_like(near)])[None])[0].double() - exact).abs()
    assert float((off / near.abs().clamp(min=1e-30)).max()) < 5 * 2**-24
    found = gate(torch.cat([ends, torch.ones_like(ends)])[None])[0]
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(found[3:7], ends[3:7]) and found[7].isnan()


def test_values_beside_a_row_are_left_alone(source: Library) -> None:
    """The lanes after an odd width belong to the next row."""
    x, delta = normal(4, 40, seed=1), normal(4, 40, seed=2)
    before = x.clone()
    RmsNorm(37, eps=1e-6, source=source)(x[:, :37], None, delta[:, :37])
    assert torch.equal(x[:, 37:], before[:, 37:])
    assert torch.equal(x[:, :37], before[:, :37] + delta[:, :37])
    qkv = normal(4, 60, seed=3)
    before = qkv.clone()
    turn = QkRotary(1, 1, 15, source=source)
    angles = torch.ones(9, 5)
    turn(qkv[:, :45], angles.cos(), angles.sin(), torch.tensor([8, 0, 3, 3]))
    assert torch.equal(qkv[:, 30:], before[:, 30:]), "v and what lies beyond"
    assert torch.equal(qkv[:, 10:15], before[:, 10:15]), "features that are not turned"
    assert not torch.equal(qkv[:, :10], before[:, :10])


def test_no_rows_are_no_work(source: Library) -> None:
    x, weight = torch.empty(0, 8), torch.ones(8)
    assert RmsNorm(8, eps=1e-6, source=source)(x, weight).shape == (0, 8)
    assert LayerNorm(8, eps=1e-6, source=source)(x, weight, None).shape == (0, 8)
    assert Gate("silu", source=source)(x).shape == (0, 4)
    ids = torch.empty(0, dtype=torch.int64)
    assert LookUp(torch.float32, source=source)(ids, torch.ones(3, 8)).shape == (0, 8)


def test_nan_stays_in_its_row(source: Library) -> None:
    x = normal(3, SIZE, seed=1)
    x[1, 5] = float("nan")
    out = RmsNorm(SIZE, eps=1e-6, source=source)(x, torch.ones(SIZE))
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()
