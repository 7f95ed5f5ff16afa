"""Mamba 2's recurrence and the gated delta rule, natively: steps cut anywhere, threads, neighbours,
recordings; and both as transformers computes them."""

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
from dovetail_kernels.gated_delta.native import GatedDelta
from dovetail_kernels.op import Arguments
from dovetail_kernels.ssd.native import Ssd
from dovetail_kernels.states import FORMATS, StateRows, pieces, step_arguments

NATIVE = library()
ISAS = NATIVE.isas() if NATIVE else ["none"]
CPU = torch.device("cpu")
TOKENS, HEADS, BLOCK_TOKENS = 75, 4, 40
CUTS = ((TOKENS,), (1,) * TOKENS, (39, 1, 2, 33), (17, 30, 1, 27), (3, 33, 39))
"""Sizes of the steps in which a row computes its tokens."""
Run = Callable[[torch.Tensor, slice, Arguments], torch.Tensor]
"""(state, tokens of the row, step arguments) -> results."""
needs_native = pytest.mark.skipif(NATIVE is None, reason=str(missing_reason()))


@pytest.fixture(params=ISAS)
def source(request: pytest.FixtureRequest) -> Iterator[Library]:
    assert NATIVE is not None
    threads = NATIVE.num_threads()
    yield Library(NATIVE.path, request.param)
    NATIVE.set_threads(threads)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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


RUNS = {
    "ssd": (ssd_of, (70, 128)),
    "odd_ssd": (ssd_of, (35, 27)),
    "delta": (delta_of, (32, 128)),
    "odd_delta": (delta_of, (33, 75)),
}


def in_steps(run: Run, shape: tuple[int, int], cut: Sequence[int], dtype: torch.dtype):
    """Return the results of a row computed in steps, and the states that its blocks have then."""
    step, num_blocks = step_arguments([(0, TOKENS)], BLOCK_TOKENS, CPU)
    state = torch.full((num_blocks, HEADS, *shape), torch.nan, dtype=dtype)
    done, made = 0, []
    for some in cut:
        step["query_start"] = torch.tensor([0, some], dtype=torch.int32)
        step["seq_lens"] = torch.tensor([done + some], dtype=torch.int32)
        made.append(run(state, slice(done, done + some), step))
        done += some
    return torch.cat(made), state[step["block_table"][0].long()]


@needs_native
@pytest.mark.parametrize("name", ["ssd", "gated_delta"])
def test_cases(source: Library, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Those that kernels are interpreted on; test_native_library.py runs the others."""
    native = importlib.import_module(f"dovetail_kernels.{name}.native")
    monkeypatch.setattr(native, "library", lambda: source)
    op = load_op(name)
    faults = {c.name: check_case(op, c, "native", CPU) for c in op.small_cases()}
    assert {case: fault for case, fault in faults.items() if fault} == {}
    assert any(c.dtype == torch.float32 for c in op.small_cases())


@needs_native
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_cuts_and_threads_change_no_bit(source: Library, name: str, dtype: torch.dtype) -> None:
    make, shape = RUNS[name]
    run = make(source, *shape)
    source.set_threads(1)
    wanted, states = in_steps(run, shape, CUTS[0], dtype)
    assert wanted.isfinite().all() and states.isfinite().all()
    for cut in CUTS:
        source.set_threads(3)
        made, kept = in_steps(run, shape, cut, dtype)
        assert torch.equal(made, wanted) and torch.equal(kept, states), cut


@needs_native
@pytest.mark.parametrize("name", RUNS)
def test_neighbours_change_no_bit_and_no_other_block_is_touched(source: Library, name: str) -> None:
    """Rows that share the block of a full prefix, and NaN wherever nothing is a row's own."""
    make, shape = RUNS[name]
    run, rows = make(source, *shape), [(0, 20), (40, 1), (40, 2), (31, 17), (0, 0), (70, 35)]
    step, num_blocks = step_arguments(rows, BLOCK_TOKENS, CPU, seed=3)
    step["block_table"][2, 0] = step["block_table"][1, 0]
    found = pieces(**step)
    state = torch.full((num_blocks, HEADS, *shape), torch.nan)
    read = sorted({piece.source for piece in found if piece.source is not None})
    state[read] = normal(num_blocks, HEADS, *shape, seed=8)[read]
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


@needs_native
@pytest.mark.parametrize("name", ["ssd", "delta"])
def test_a_recorded_step_follows_rows_and_blocks(name: str) -> None:
    assert NATIVE is not None
    make, shape = RUNS[name]
    run, rows = make(NATIVE, *shape), [(0, 1), (5, 1), (40, 1)]
    step, num_blocks = step_arguments(rows, BLOCK_TOKENS, CPU)
    state, some = normal(num_blocks, HEADS, *shape, seed=8), slice(0, 3)
    first = state.clone()
    with torch.inference_mode():
        program = record(lambda: run(state, some, step), Pool(), kept=(step, state))
        assert len(program) == 1
        step["seq_lens"].copy_(torch.tensor([41, 1, 18]))
        step["block_table"].copy_(step["block_table"].flip(0))
        state.copy_(first)
        made, fresh = program.run().clone(), first.clone()
        assert torch.equal(made, run(fresh, some, step)) and torch.equal(state, fresh)
        assert not torch.equal(state, first)


def one_row(tokens: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, int, Arguments]:
    """Return random states, the block of a row's last token, and the step of that row's tokens."""
    step, num_blocks = step_arguments([(0, tokens)], 256, CPU)
    return normal(num_blocks, *shape, seed=9), int(step["block_table"][0, 0]), step


def compute(name: str, implementation: str, arguments: Arguments) -> torch.Tensor:
    if implementation == "native" and NATIVE is None:
        pytest.skip(str(missing_reason()))
    op = load_op(name)
    function = op.pick("cpu", torch.float32, name=implementation)
    return function(**op.prepare(implementation, arguments))


def agrees(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", ["reference", "native", "chunked"])
def test_ssd_as_transformers_has_it(implementation: str) -> None:
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    x, dt, a = normal(100, 6, 16, seed=1), normal(100, 6, seed=2), -normal(6, seed=3).exp()
    (b, c), (d, bias) = normal(2, 100, 2, 24, seed=4), normal(2, 6, seed=5)
    limit = (0.01, 1.5)
    state, block, step = one_row(100, (6, 16, 24))
    inputs = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "dt_bias": bias, "dt_limit": limit}
    found = compute("ssd", implementation, inputs | {"state": state} | step)
    wanted, last = mamba2.mamba2_chunk_scan(
        x[None], dt[None], a, b[None], c[None], chunk_size=32, D=d, dt_bias=bias,
        dt_softplus=True, dt_limit=limit, return_final_states=True,
    )  # fmt: skip
    assert agrees(found, wanted[0])
    assert agrees(state[block], last[0])


@pytest.mark.parametrize("implementation", ["reference", "native", "chunked"])
def test_the_gated_delta_rule_as_transformers_has_it(implementation: str) -> None:
    qwen3 = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    (q, k), v = normal(2, 100, 2, 24, seed=1), normal(100, 4, 16, seed=2)
    (decay, beta), (a_log, bias) = normal(2, 100, 4, seed=3), normal(2, 4, seed=4)
    state, block, step = one_row(100, (4, 24, 16))
    inputs = {"q": q, "k": k, "v": v, "decay_in": decay, "beta_in": beta, "a_log": a_log}
    inputs |= {"dt_bias": bias, "scale": 24**-0.5, "state": state}
    found = compute("gated_delta", implementation, inputs | step)
    logs = -a_log.exp() * F.softplus(decay + bias)
    for function in (qwen3.torch_recurrent_gated_delta_rule, qwen3.torch_chunk_gated_delta_rule):
        wanted, last = function(
            *(one[None] for one in (q, k, v)), g=logs[None], beta=beta.sigmoid()[None],
            output_final_state=True, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        assert agrees(found, wanted[0])
        assert agrees(state[block], last[0])


@needs_native
def test_lightning_attention_has_no_steps_of_time() -> None:
    """Without dt a token enters whole: a sum over the past, decayed by e^a a token."""
    x, a = normal(30, 2, 5, seed=1), torch.tensor([-0.1, -2.0])
    b, c = normal(2, 30, 2, 7, seed=2)
    state, _, step = one_row(30, (2, 5, 7))
    inputs = {"x": x, "dt": None, "a": a, "b": b, "c": c, "d": None, "dt_bias": None}
    inputs |= {"dt_limit": (0.0, float("inf")), "state": state}
    found = compute("ssd", "native", inputs | step)
    ages = (torch.arange(30).unsqueeze(1) - torch.arange(30)).float()
    decay = (a[:, None, None] * ages).tril().exp().tril()
    wanted = torch.einsum("hij,ihs,jhs,jhp->ihp", decay, c, b, x)
    assert agrees(found, wanted)
