"""Chains of programs draw what each row alone would draw, for as long as that is likely."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from dovetail_kernels.cpu.chain import Chain, Lines
from dovetail_kernels.cpu.library import library, missing_reason, watch_calls
from dovetail_kernels.cpu.program import Pool, Program, by_torch, record
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.weight import Weight
from dovetail_kernels.sample.native import NativeSampler, Tables

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")
VOCAB, SIZE, ROWS, MOST, WIDTH, BLOCK = 48, 32, 6, 5, 4, 4
TOKENS = [7, 30, 2, 41, 19, 5]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=[False, True], ids=["native", "watched"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """By one native call, or call by call, as while a profiler looks."""
    if request.param:
        watch_calls(lambda name: nullcontext())
    yield
    watch_calls(None)


class Walk:
    """Draws the token that is most likely after a token and what was made of those before it; the
    first, the second and all later tokens by tables of their own."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        shapes = [(VOCAB, SIZE)] * 4 + [(SIZE, SIZE)]
        packed = [Packed(Weight(format="float32", values=0.4 * torch.randn(s))) for s in shapes]
        *self.tables, self.head, self.mix = packed
        tables = Tables(ROWS)
        tables.num_top[:] = 0
        self.sampler = NativeSampler(tables)
        self.first = Lines.empty(ROWS, WIDTH, None)
        later = Lines.empty(ROWS, WIDTH, torch.zeros(ROWS, SIZE))
        self.drawn = self.sampler.tokens, self.sampler.logprobs.logprob
        self.chain = Chain(*self.drawn, self.first.blocks, later, MOST)
        self.pool = Pool()
        self.begun = {n: record(lambda n=n: self.step(0, n), self.pool) for n in (2, 6)}
        self.chain.later = [
            {n: self.padded(depth, n) for n in range(1, ROWS + 1)} for depth in (1, 2)
        ]

    def padded(self, depth: int, rows: int) -> tuple[Program, int]:
        count = rows + rows % 2
        return record(lambda: self.step(depth, count), self.pool), count

    def step(self, depth: int, rows: int) -> torch.Tensor:
        """Draw for the first lines; return their states."""
        lines = self.chain.lines if depth else self.first
        given = None if lines.states is None else lines.states[:rows]
        states = self.states(depth, torch.from_numpy(lines.tokens)[:rows], given)
        numbers = np.arange(rows)
        self.sampler(self.head(states), numbers, np.zeros_like(numbers), logprobs_top=0)
        return states

    def states(self, depth: int, tokens: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
        own = self.tables[depth].rows(tokens)
        return own if given is None else self.mix(given, None, own)

    def alone(self, token: int, most: int, least: float) -> tuple[list[int], int]:
        """Return what a row draws, and how much of it is likely."""
        drawn: list[int] = []
        states, chance = None, 0.0
        for depth in range(most):
            states = self.states(min(depth, 2), torch.tensor([token]), states)
            chances = self.head(states)[0].double().log_softmax(-1)
            token = int(chances.argmax())
            drawn.append(token)
            chance += float(chances[token])
            if chance < least:
                return drawn, depth
        return drawn, most


def ask(walk: Walk, tokens: list[int], wants: list[int]) -> None:
    """Let rows ask for tokens behind position 10, 11, ..., the last two with blocks that they do
    not see."""
    count = len(tokens)
    nth = np.arange(count)
    chain = walk.chain
    walk.first.tokens[:count] = tokens
    walk.first.blocks[:count] = np.arange(count * WIDTH).reshape(count, WIDTH) + 1
    chain.wants[:count], chain.positions[:count] = wants, 10 + nth
    chain.skipped[:count] = np.where(nth >= count - 2, BLOCK, 0)
    chain.slots[:, :count] = 100 * nth + np.arange(MOST)[:, None]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("least", [0.02, 0.0005, 0.0])
def test_rows_draw_what_each_alone_draws(least: float) -> None:
    walk, wants = Walk(), [5, 1, 3, 5, 2, 4]
    least = math.log(least) if least else -math.inf
    for count in (6, 2, 6):
        ask(walk, TOKENS[:count], wants[:count])
        walk.chain.run(walk.begun[count], count, WIDTH, least)
        made = walk.chain.made[:count].tolist()
        expected = [walk.alone(*own, least) for own in zip(TOKENS, wants, strict=True)][:count]
        assert made == [len(drawn) for drawn, _ in expected]
        assert walk.chain.likely[:count].tolist() == [likely for _, likely in expected]
        found = [walk.chain.drafts[row, :n].tolist() for row, n in enumerate(made)]
        assert found == [drawn for drawn, _ in expected]
    assert least == -math.inf or len(set(made)) > 1, "all rows end at once: nothing is shown"


@pytest.mark.usefixtures("way")
def test_rows_that_go_on_read_where_their_own_tokens_lie() -> None:
    walk = Walk()
    ask(walk, TOKENS, [1, 2, 1, 2, 1, 2])
    walk.chain.run(walk.begun[6], 6, WIDTH, -math.inf)
    lines = walk.chain.lines
    assert lines.positions.tolist()[:4] == [11, 13, 15, 0]
    assert lines.tokens.tolist()[:4] == [*walk.chain.drafts[[1, 3, 5], 0], 0]
    assert lines.lens.tolist()[:4] == [12, 14, 16 - BLOCK, 1]
    assert lines.slots.tolist()[:4] == [100, 300, 500, 0]
    assert lines.blocks[:3].tolist() == walk.first.blocks[[1, 3, 5]].tolist()
    assert lines.blocks[3, 0] == 0


def test_a_call_that_fails_says_why() -> None:
    walk, fails = Walk(), [False]

    def refuse(x: torch.Tensor) -> tuple[torch.Tensor]:
        if fails[0]:
            raise ValueError("no such luck")
        return (x.clone(),)

    def step() -> torch.Tensor:
        return by_torch(refuse, walk.step(1, 2))[0]

    walk.chain.later[0] = {**walk.chain.later[0], 2: (record(step, walk.pool), 2)}
    ask(walk, TOKENS[:2], [3, 3])
    walk.chain.run(walk.begun[2], 2, WIDTH, -math.inf)
    fails[0] = True
    with pytest.raises(ValueError, match="no such luck"):
        walk.chain.run(walk.begun[2], 2, WIDTH, -math.inf)
