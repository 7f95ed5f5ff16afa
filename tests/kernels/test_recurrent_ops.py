"""Short convolutions, selective scans and gated norms, natively: steps cut anywhere, threads."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F

from dovetail_kernels import load_op
from dovetail_kernels.check import check_case
from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.cpu.program import Pool, record
from dovetail_kernels.gated_norm.native import GatedNorm
from dovetail_kernels.op import Arguments
from dovetail_kernels.selective_scan.native import SelectiveScan
from dovetail_kernels.short_conv.native import ShortConv
from dovetail_kernels.states import FORMATS, StateRows, pieces, step_arguments

NATIVE = library()
ISAS = NATIVE.isas() if NATIVE else ["none"]
CPU = torch.device("cpu")
TOKENS, CHANNELS, BLOCK_TOKENS = 75, 275, 16
CUTS = ((TOKENS,), (1,) * TOKENS, (15, 1, 2, 14, 43), (17, 30, 1, 27), (3, 29, 43))
"""Sizes of the steps in which a row computes its tokens."""
Run = Callable[[torch.Tensor, slice, Arguments], torch.Tensor]
"""(state, tokens of the row, step arguments) -> results."""
pytestmark = pytest.mark.skipif(NATIVE is None, reason=str(missing_reason()))


@pytest.fixture(params=ISAS)
def source(request: pytest.FixtureRequest) -> Iterator[Library]:
    assert NATIVE is not None
    threads = NATIVE.num_threads()
    yield Library(NATIVE.path, request.param)
    NATIVE.set_threads(threads)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def conv_of(source: Library, tokens: int = TOKENS) -> Run:
    conv = ShortConv("silu", source=source)
    x, weight, bias = normal(tokens, CHANNELS, seed=1), normal(CHANNELS, 4, seed=2), None

    def run(state: torch.Tensor, some: slice, step: Arguments) -> torch.Tensor:
        return conv(x[some], weight, bias, state, StateRows(**step))

    return run


def scan_of(source: Library, tokens: int = TOKENS, size: int = 16) -> Run:
    a, d, dt_bias = -normal(CHANNELS, size, seed=1).exp(), *normal(2, CHANNELS, seed=2)
    scan = SelectiveScan(a, d, dt_bias, source=source)
    x, dt, z = normal(3, tokens, CHANNELS, seed=3)
    b, c = normal(2, tokens, size, seed=4)

    def run(state: torch.Tensor, some: slice, step: Arguments) -> torch.Tensor:
        inputs = (x[some], dt[some], b[some], c[some], z[some])
        return scan(*inputs, state, StateRows(**step))

    return run


RUNS = {
    "conv": (conv_of, (CHANNELS, 3)),
    "scan": (scan_of, (CHANNELS, 16)),
    "odd_scan": (lambda source: scan_of(source, size=11), (CHANNELS, 11)),
}


def in_steps(run: Run, shape: tuple[int, ...], cut: Sequence[int], dtype: torch.dtype):
    """Return the results of a row computed in steps, and the states that its blocks have then."""
    step, num_blocks = step_arguments([(0, TOKENS)], BLOCK_TOKENS, CPU)
    state = torch.full((num_blocks, *shape), torch.nan, dtype=dtype)
    done, made = 0, []
    for some in cut:
        step["query_start"] = torch.tensor([0, some], dtype=torch.int32)
        step["seq_lens"] = torch.tensor([done + some], dtype=torch.int32)
        made.append(run(state, slice(done, done + some), step))
        done += some
    return torch.cat(made), state[step["block_table"][0].long()]


@pytest.mark.parametrize("name", ["short_conv", "selective_scan", "gated_norm", "output_gate"])
def test_cases(source: Library, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    native = importlib.import_module(f"dovetail_kernels.{name}.native")
    monkeypatch.setattr(native, "library", lambda: source)
    op = load_op(name)
    faults = {c.name: check_case(op, c, "native", CPU) for c in op.cases()}
    assert {case: fault for case, fault in faults.items() if fault} == {}
    assert any(c.dtype == torch.float32 for c in op.cases())


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_cuts_and_threads_change_no_bit(source: Library, name: str, dtype: torch.dtype) -> None:
    make, shape = RUNS[name]
    run = make(source)
    source.set_threads(1)
    wanted, states = in_steps(run, shape, CUTS[0], dtype)
    assert wanted.isfinite().all() and states.isfinite().all()
    for cut in CUTS:
        source.set_threads(3)
        made, kept = in_steps(run, shape, cut, dtype)
        assert torch.equal(made, wanted) and torch.equal(kept, states), cut


@pytest.mark.parametrize("name", RUNS)
def test_neighbours_change_no_bit_and_no_other_block_is_touched(source: Library, name: str) -> None:
    """Rows that share the block of a full prefix, and NaN wherever nothing is a row's own."""
    make, shape = RUNS[name]
    run, rows = make(source), [(0, 20), (16, 1), (16, 2), (31, 17), (0, 0), (40, 35)]
    step, num_blocks = step_arguments(rows, BLOCK_TOKENS, CPU, seed=3)
    step["block_table"][2, 0] = step["block_table"][1, 0]
    found = pieces(**step)
    state = torch.full((num_blocks, *shape), torch.nan)
    read = sorted({piece.source for piece in found if piece.source is not None})
    state[read] = normal(num_blocks, *shape, seed=8)[read]
    before = state.clone()
    together = run(state, slice(0, TOKENS), step)
    assert together.isfinite().all()
    other = sorted(set(range(num_blocks)) - {piece.target for piece in found})
    assert torch.equal(state[other].nan_to_num(), before[other].nan_to_num())
    starts = step["query_start"].tolist()
    for row in range(len(rows)):
        alone = {
            "query_start": torch.tensor([0, rows[row][1]], dtype=torch.int32),
            "seq_lens": step["seq_lens"][row : row + 1],
            "block_table": step["block_table"][row : row + 1],
            "block_tokens": BLOCK_TOKENS,
        }
        some = slice(starts[row], starts[row + 1])
        assert torch.equal(run(before.clone(), some, alone), together[some]), row


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_step_follows_rows_and_blocks(name: str) -> None:
    assert NATIVE is not None
    make, shape = RUNS[name]
    run, rows = make(NATIVE), [(0, 1), (5, 1), (16, 1)]
    step, num_blocks = step_arguments(rows, BLOCK_TOKENS, CPU)
    state, some = normal(num_blocks, *shape, seed=8), slice(0, 3)
    first = state.clone()
    with torch.inference_mode():
        program = record(lambda: run(state, some, step), Pool(), kept=(step, state))
        assert len(program) == 1
        step["seq_lens"].copy_(torch.tensor([16, 1, 18]))
        step["block_table"].copy_(step["block_table"].flip(0))
        state.copy_(first)
        made, fresh = program.run().clone(), first.clone()
        assert torch.equal(made, run(fresh, some, step)) and torch.equal(state, fresh)
        assert not torch.equal(state, first)


def test_small_and_large_steps_of_time(source: Library) -> None:
    """delta alone: softplus is as exact as torch's wherever e^dt is not flushed to zero."""
    dt = torch.cat([torch.linspace(-80, 80, 20_001), torch.tensor([-1e4, 1e4])])
    count = len(dt)
    scan = SelectiveScan(-torch.ones(count, 1), torch.zeros(count), None, source=source)
    step, num_blocks = step_arguments([(0, 1)], BLOCK_TOKENS, CPU)
    ones, state = torch.ones(1, count), torch.zeros(num_blocks, count, 1)
    delta = scan(ones, dt[None], ones[:, :1], ones[:, :1], None, state, StateRows(**step))[0]
    exact = F.softplus(dt.double(), threshold=100)
    assert float(((delta.double() - exact).abs() / exact.clamp(min=1e-30)).max()) < 5e-7


@pytest.mark.parametrize("dtype", FORMATS)
def test_kept_inputs_are_rounded_as_torch_rounds(source: Library, dtype: torch.dtype) -> None:
    ends = [0.0, -0.0, 1e-41, 3e-6, 65504.0, 65519.0, 65520.0, 3.4e38, float("inf"), float("nan")]
    x = torch.cat([torch.tensor(ends), 1 + torch.arange(-20, 21) / 2**10, normal(1000, seed=1)])
    x = torch.cat([x, -x])[None]
    step, num_blocks = step_arguments([(0, 1)], BLOCK_TOKENS, CPU)
    state = torch.zeros((num_blocks, x.shape[1], 1), dtype=dtype)
    weight = torch.ones(x.shape[1], 2)
    ShortConv(source=source)(x, weight, None, state, StateRows(**step))
    kept = state[step["block_table"][0, 0], :, 0]
    assert kept.isnan().sum() == 2
    assert torch.equal(kept.nan_to_num(nan=7), x[0].to(dtype).nan_to_num(nan=7))


def test_a_gated_row_is_its_own(source: Library) -> None:
    x, gate, weight = normal(70, 333, seed=1), normal(70, 333, seed=2), normal(111, seed=3)
    for gate_first in (False, True):
        norm = GatedNorm(111, eps=1e-6, gate_first=gate_first, source=source)
        source.set_threads(3)
        together = norm(x, gate, weight)
        source.set_threads(1)
        assert torch.equal(norm(x, gate, weight), together)
        for row in (0, 1, 69):
            alone = slice(row, row + 1)
            assert torch.equal(norm(x[alone], gate[alone], weight)[0], together[row])
    assert norm(x[:0], gate[:0], weight).shape == (0, 333)
