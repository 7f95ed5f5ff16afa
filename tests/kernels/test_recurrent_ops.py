"""Ops over states and gated norms, natively: steps cut anywhere, threads, neighbours, records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from dovetail_kernels import load_op
from dovetail_kernels.check import check_case
from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.cpu.program import Pool, record
from dovetail_kernels.gated_delta.native import GatedDelta
from dovetail_kernels.gated_norm.native import GatedNorm
from dovetail_kernels.op import Arguments
from dovetail_kernels.selective_scan.native import SelectiveScan
from dovetail_kernels.short_conv.native import ShortConv
from dovetail_kernels.ssd.native import Ssd
from dovetail_kernels.states import FORMATS, StateRows, pieces, step_arguments
from dovetail_kernels.wkv.native import Wkv

NATIVE = library()
ISAS = NATIVE.isas() if NATIVE else ["none"]
CPU = torch.device("cpu")
TOKENS, CHANNELS, HEADS = 75, 275, 4
CUTS = (
    *((TOKENS,), (1,) * TOKENS, (15, 1, 2, 14, 43), (17, 30, 1, 27), (3, 29, 43)),
    *((39, 1, 2, 33), (3, 33, 39)),
)
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


def wkv_of(source: Library) -> Run:
    wkv = Wkv(-normal(CHANNELS, seed=1).exp(), normal(CHANNELS, seed=2), source=source)
    k, v, r = normal(3, TOKENS, CHANNELS, seed=3)

    def run(state: torch.Tensor, some: slice, step: Arguments) -> torch.Tensor:
        return wkv(k[some], v[some], r[some], state, StateRows(**step))

    return run


def ssd_of(source: Library, lines: int, size: int) -> Run:
    a, (d, dt_bias) = -normal(HEADS, seed=1).exp(), normal(2, HEADS, seed=2)
    layer = Ssd(a, d, dt_bias, (0.001, 2.0), source=source)
    x, dt = normal(TOKENS, HEADS, lines, seed=3), normal(TOKENS, HEADS, seed=4)
    b, c = normal(2, TOKENS, 2, size, seed=5)

    def run(state: torch.Tensor, some: slice, step: Arguments) -> torch.Tensor:
        return layer(x[some], dt[some], b[some], c[some], state, StateRows(**step))

    return run


def delta_of(source: Library, keys: int, values: int) -> Run:
    layer = GatedDelta(normal(HEADS, seed=1), normal(HEADS, seed=2), 0.3, source=source)
    q, k = normal(2, TOKENS, 2, keys, seed=3)
    v, (decay, beta) = normal(TOKENS, HEADS, values, seed=4), normal(2, TOKENS, HEADS, seed=5)

    def run(state: torch.Tensor, some: slice, step: Arguments) -> torch.Tensor:
        inputs = (q[some], k[some], v[some], decay[some], beta[some])
        return layer(*inputs, state, StateRows(**step))

    return run


@dataclass(frozen=True)
class Layer:
    """An op with a layer's arguments: how it is made, its state, and how large its blocks are."""

    make: Callable[[Library], Run]
    shape: tuple[int, ...]
    block_tokens: int = 16


def of_heads(make: Callable[[Library, int, int], Run], first: int, second: int) -> Layer:
    return Layer(lambda source: make(source, first, second), (HEADS, first, second), 40)


LAYERS = {
    "conv": Layer(conv_of, (CHANNELS, 3)),
    "scan": Layer(scan_of, (CHANNELS, 16)),
    "odd_scan": Layer(lambda source: scan_of(source, size=11), (CHANNELS, 11)),
    "wkv": Layer(wkv_of, (3, CHANNELS)),
    "ssd": of_heads(ssd_of, 70, 128),
    "odd_ssd": of_heads(ssd_of, 35, 27),
    "delta": of_heads(delta_of, 32, 128),
    "odd_delta": of_heads(delta_of, 33, 75),
}


def in_steps(run: Run, layer: Layer, cut: Sequence[int], dtype: torch.dtype):
    """Return the results of a row computed in steps, and the states that its blocks have then."""
    step, num_blocks = step_arguments([(0, TOKENS)], layer.block_tokens, CPU)
    state = torch.full((num_blocks, *layer.shape), torch.nan, dtype=dtype)
    done, made = 0, []
    for some in cut:
        step["query_start"] = torch.tensor([0, some], dtype=torch.int32)
        step["seq_lens"] = torch.tensor([done + some], dtype=torch.int32)
        made.append(run(state, slice(done, done + some), step))
        done += some
    return torch.cat(made), state[step["block_table"][0].long()]


@pytest.mark.parametrize(
    "name", ["short_conv", "selective_scan", "wkv", "gated_norm", "output_gate"]
)
def test_cases(source: Library, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("dovetail_kernels.cpu.library.library", lambda: source)
    op = load_op(name)
    faults = {c.name: check_case(op, c, "native", CPU) for c in op.cases()}
    assert {case: fault for case, fault in faults.items() if fault} == {}
    assert any(c.dtype == torch.float32 for c in op.cases())


@pytest.mark.parametrize("name", ["ssd", "gated_delta"])
def test_small_cases(source: Library, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Those that kernels are interpreted on; test_native_library.py runs the others."""
    monkeypatch.setattr("dovetail_kernels.cpu.library.library", lambda: source)
    op = load_op(name)
    faults = {c.name: check_case(op, c, "native", CPU) for c in op.small_cases()}
    assert {case: fault for case, fault in faults.items() if fault} == {}
    assert any(c.dtype == torch.float32 for c in op.small_cases())


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_cuts_and_threads_change_no_bit(source: Library, name: str, dtype: torch.dtype) -> None:
    layer = LAYERS[name]
    run = layer.make(source)
    source.set_threads(1)
    wanted, states = in_steps(run, layer, CUTS[0], dtype)
    assert wanted.isfinite().all() and states.isfinite().all()
    for cut in CUTS:
        source.set_threads(3)
        made, kept = in_steps(run, layer, cut, dtype)
        assert torch.equal(made, wanted) and torch.equal(kept, states), cut


@pytest.mark.parametrize("name", LAYERS)
def test_neighbours_change_no_bit_and_no_other_block_is_touched(source: Library, name: str) -> None:
    """Rows that share the block of a full prefix, and NaN wherever nothing is a row's own."""
    layer = LAYERS[name]
    size, shape, run = layer.block_tokens, layer.shape, layer.make(source)
    rows = [(0, 20), (size, 1), (size, 2), (31, 17), (0, 0), (30 + size, 35)]
    step, num_blocks = step_arguments(rows, size, CPU, seed=3)
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
            "block_tokens": size,
        }
        some = slice(starts[row], starts[row + 1])
        assert torch.equal(run(before.clone(), some, alone), together[some]), row


@pytest.mark.parametrize("name", LAYERS)
def test_a_recorded_step_follows_rows_and_blocks(name: str) -> None:
    assert NATIVE is not None
    layer = LAYERS[name]
    run, size = layer.make(NATIVE), layer.block_tokens
    step, num_blocks = step_arguments([(0, 1), (5, 1), (size, 1)], size, CPU)
    state, some = normal(num_blocks, *layer.shape, seed=8), slice(0, 3)
    first = state.clone()
    with torch.inference_mode():
        program = record(lambda: run(state, some, step), Pool(), owner=(step, state))
        assert len(program) == 1
        step["seq_lens"].copy_(torch.tensor([size + 1, 1, 18]))
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
    step, num_blocks = step_arguments([(0, 1)], 16, CPU)
    ones, state = torch.ones(1, count), torch.zeros(num_blocks, count, 1)
    delta = scan(ones, dt[None], ones[:, :1], ones[:, :1], None, state, StateRows(**step))[0]
    exact = F.softplus(dt.double(), threshold=100)
    assert float(((delta.double() - exact).abs() / exact.clamp(min=1e-30)).max()) < 5e-7


@pytest.mark.parametrize("dtype", FORMATS)
def test_kept_inputs_are_rounded_as_torch_rounds(source: Library, dtype: torch.dtype) -> None:
    ends = [0.0, -0.0, 1e-41, 3e-6, 65504.0, 65519.0, 65520.0, 3.4e38, float("inf"), float("nan")]
    x = torch.cat([torch.tensor(ends), 1 + torch.arange(-20, 21) / 2**10, normal(1000, seed=1)])
    x = torch.cat([x, -x])[None]
    step, num_blocks = step_arguments([(0, 1)], 16, CPU)
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
