"""Experts and routing on the native library beyond their cases: all formats, tokens alone, threads,
what is added, recorded calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.cpu.program import Pool, record
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.weight import FORMATS
from dovetail_kernels.moe.cases import rolled
from dovetail_kernels.moe.native import Moe, PackedExperts, packed_experts
from dovetail_kernels.route.native import Route

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

SIZE, INNER, EXPERTS, PICKED = 192, 64, 7, 3


@pytest.fixture
def threads() -> Iterator[None]:
    native = library()
    assert native is not None
    before = native.num_threads()
    yield
    native.set_threads(before)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def packed(format: str, *, rounds: bool = False) -> tuple[list[Packed], list[Packed]]:
    """Return the gate_up and down matrices of a few experts, each another one."""
    shapes = ((2 * INNER, SIZE, True), (SIZE, INNER, False))
    made = []
    for outputs, inputs, is_gated in shapes:
        parts = [rolled(make_weight(format, outputs, inputs), e) for e in range(EXPERTS)]
        made.append([Packed(w, is_gated=is_gated, rounds_activations=rounds) for w in parts])
    return made[0], made[1]


def asked(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, weights and picked experts; of every third token an expert is not here."""
    weights, experts = random(tokens, EXPERTS).softmax(dim=-1).topk(PICKED)
    experts[::3, 1] = -1
    return random(tokens, SIZE), weights, experts


def by_experts(
    gate_up: list[Packed], down: list[Packed], x: torch.Tensor, weights: torch.Tensor,
    experts: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return the sums by products of each expert for itself."""
    out = torch.zeros_like(x)
    for e, (first, second) in enumerate(zip(gate_up, down, strict=True)):
        tokens, places = (experts == e).nonzero(as_tuple=True)
        if len(tokens):
            made = second(first(x[tokens], activation="silu"))
            out.index_add_(0, tokens, made * weights[tokens, places].unsqueeze(1))
    return out


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.usefixtures("threads")
def test_all_formats_and_any_batch_on_any_threads(format: str) -> None:
    native = library()
    assert native is not None
    gate_up, down = packed(format)
    moe = Moe(PackedExperts(gate_up), PackedExperts(down), "silu")
    x, weights, experts = asked(61)
    whole = moe(x, weights, experts)
    torch.testing.assert_close(
        whole,
        by_experts(gate_up, down, x, weights, experts),
        rtol=1e-5,
        atol=1e-5 * float(whole.abs().max()),
    )
    for count in (1, 2, 4):
        native.set_threads(count)
        assert torch.equal(moe(x, weights, experts), whole)
        for t in (0, 17):
            part = slice(t, t + count)
            assert torch.equal(moe(x[part], weights[part], experts[part]), whole[part])


def test_rounded_activations_are_those_of_single_products() -> None:
    gate_up, down = packed("int4", rounds=True)
    moe = Moe(PackedExperts(gate_up), PackedExperts(down), "silu")
    x, weights, experts = asked(9)
    torch.testing.assert_close(
        moe(x, weights, experts), by_experts(gate_up, down, x, weights, experts)
    )


def test_many_tokens_are_computed_in_parts() -> None:
    weights = torch.rand(1500, 8)
    experts = torch.arange(8).repeat(1500, 1)
    gate_up = [Packed(make_weight("float32", 32, 1536), is_gated=True)] * 8
    down = [Packed(make_weight("float32", 1536, 16))] * 8
    moe = Moe(PackedExperts(gate_up), PackedExperts(down), "silu")
    x = random(1500, 1536)
    whole = moe(x, weights, experts)
    torch.testing.assert_close(
        whole,
        by_experts(gate_up[:1], down[:1], x, weights.sum(1, keepdim=True), experts[:, :1]),
        rtol=1e-4,
        atol=1e-3,
    )
    assert torch.equal(moe(x[-2:], weights[-2:], experts[-2:]), whole[-2:])


def test_what_else_a_block_adds() -> None:
    gate_up, down = packed("bfloat16")
    moe = Moe(PackedExperts(gate_up), PackedExperts(down), "silu")
    x, weights, experts = asked(5)
    residual, shared, scores = random(5, SIZE, seed=1), random(5, SIZE, seed=2), random(5, 1)
    plain = moe(x, weights, experts)
    torch.testing.assert_close(moe(x, weights, experts, residual), plain + residual)
    torch.testing.assert_close(moe(x, weights, experts, None, shared), plain + shared)
    everything = moe(x, weights, experts, residual, shared, scores)
    torch.testing.assert_close(everything, plain + residual + scores.sigmoid() * shared)


def test_weights_may_multiply_what_experts_read() -> None:
    gate_up, down = packed("float32")
    moe = Moe(PackedExperts(gate_up), PackedExperts(down), "silu", weighs_inputs=True)
    x, weights, experts = asked(6)
    wanted = sum(
        by_experts(
            gate_up, down, x * weights[:, a : a + 1], torch.ones(6, 1), experts[:, a : a + 1]
        )
        for a in range(PICKED)
    )
    torch.testing.assert_close(moe(x, weights, experts), wanted)


@pytest.mark.parametrize("is_gated", [True, False])
def test_biases_and_clamped_halves(is_gated: bool) -> None:
    first, second = make_weight("float32", 2 * INNER, SIZE), make_weight("float32", SIZE, INNER)
    biases, more = random(2, 2 * INNER) * 3, random(2, SIZE)
    gate_up = PackedExperts([Packed(first, is_gated=is_gated)] * 2, biases)
    moe = Moe(gate_up, PackedExperts([Packed(second)] * 2, more), "swiglu_oai", limit=0.7)
    x, experts = random(5, SIZE) * 3, torch.tensor([[0], [1], [1], [0], [1]])
    gate, up = (x @ first.values.t() + biases[experts[:, 0]]).chunk(2, dim=1)
    gate, up = gate.clamp(max=0.7), up.clamp(-0.7, 0.7)
    wanted = (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ second.values.t() + more[
        experts[:, 0]
    ]
    torch.testing.assert_close(moe(x, torch.ones(5, 1), experts), wanted, rtol=1e-4, atol=1e-4)


def test_only_matrices_packed_alike_are_joined() -> None:
    one, other = Packed(make_weight("int8", 8, 32)), Packed(make_weight("float32", 8, 32))
    assert packed_experts([one, one]) is not None
    assert packed_experts([one, other]) is None
    assert packed_experts([one, None]) is None


def test_recorded_calls_read_the_scores_anew() -> None:
    gate_up, down = packed("int8")
    moe, route = Moe(PackedExperts(gate_up), PackedExperts(down), "silu"), Route(renormalizes=True)
    x, scores = random(4, SIZE), random(4, EXPERTS)

    def layer() -> torch.Tensor:
        weights, experts = torch.empty(4, PICKED), torch.empty(4, PICKED, dtype=torch.int64)
        route(scores, weights, experts)
        return moe(x, weights, experts, x)

    program = record(layer, Pool())
    assert len(program) == 2
    for seed in (1, 2):
        scores.copy_(random(4, EXPERTS, seed=seed))
        x.copy_(random(4, SIZE, seed=seed))
        assert torch.equal(program.run(), layer())


def test_scores_that_are_no_numbers_pick_different_experts() -> None:
    scores = random(3, 2 * EXPERTS)[:, :EXPERTS]
    scores[0] = torch.nan
    scores[1, 2] = torch.inf
    scores[2, :-1] = -torch.inf
    weights, experts = torch.empty(3, PICKED), torch.empty(3, PICKED, dtype=torch.int64)
    for scoring in ("softmax", "sigmoid"):
        Route(scoring=scoring)(scores, weights, experts)
        assert all(len(set(row)) == PICKED and max(row) < EXPERTS for row in experts.tolist())
        assert weights[0].isnan().all()
    with pytest.raises(ValueError, match="3 of 2 experts cannot be picked"):
        Route()(scores[:, :2], weights, experts)


def test_softmax_of_scores_whose_rows_lie_apart() -> None:
    scores = random(3, 2 * EXPERTS)[:, EXPERTS:]
    weights, experts = torch.empty(3, PICKED), torch.empty(3, PICKED, dtype=torch.int64)
    Route()(scores, weights, experts)
    wanted = F.softmax(scores, dim=-1).topk(PICKED)
    assert torch.equal(experts, wanted.indices)
    torch.testing.assert_close(weights, wanted.values)
