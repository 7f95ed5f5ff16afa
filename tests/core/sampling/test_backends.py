"""Which backend does a step: the first that can take it, after all others have settled its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import RowTokens
from dovetail.sampling import features as bits
from dovetail.sampling.acceptance import Proposals
from dovetail.sampling.backend import SamplingBackend, SamplingState
from dovetail.sampling.native import NativeBackend
from dovetail.sampling.pending import DoneDraws
from dovetail.sampling.processors import ProcessorChain
from dovetail.sampling.rows import SamplingRows
from dovetail.sampling.sampler import Draws, Sampler
from dovetail.sampling.step import DrawStep
from dovetail.sampling.step_logprobs import StepLogprobs
from dovetail_kernels.cpu.library import library
from dovetail_kernels.sample.definition import MAX_VOCAB
from dovetail_kernels.sample.penalties import Penalties


def state() -> SamplingState:
    rows = SamplingRows(4)
    logprobs = StepLogprobs(rows=rows, uses_kernels=True, tells_processed=False, tells_logits=False)
    return SamplingState(
        rows=rows, penalties=Penalties(rows.tables), chain=ProcessorChain({}), logprobs=logprobs
    )


def step(features: int = 0, proposals: Sequence[Proposals] = ()) -> DrawStep:
    return DrawStep(
        rows=np.array([0]),
        positions=np.array([0]),
        features=np.array([features]),
        union=features,
        row_list=[0],
        proposals=proposals,
    )


class Fixed(SamplingBackend):
    """Draws token 7 in every step whose logits have `width` columns; records whom it settles."""

    def __init__(self, width: int) -> None:
        super().__init__(state())
        self.width = width
        self.settled: list[int] = []

    def can_take(self, logits: torch.Tensor, step: DrawStep) -> bool:
        return logits.shape[1] == self.width

    def draw(self, logits: torch.Tensor, step: DrawStep) -> DoneDraws:
        return DoneDraws(Draws(token_ids=[7] * len(logits)), logits.device)

    def settle(self, rows: Sequence[int]) -> None:
        self.settled += rows


@pytest.mark.skipif(library() is None, reason="needs the native library")
def test_the_native_call_leaves_out_what_it_cannot_do() -> None:
    native, logits = NativeBackend(state()), torch.zeros(1, 9)
    drafts = Proposals(indices=np.array([0]), token_ids=np.array([1]))
    assert native.can_take(logits, step(bits.RANDOM | bits.PENALISED | bits.PROCESSED))
    assert not native.can_take(logits, step(bits.PROCESSED | bits.SHAPED))
    assert not native.can_take(logits, step(bits.RANDOM, [drafts]))
    assert not native.can_take(logits.to("meta"), step())
    assert not native.can_take(torch.zeros(1, 1).expand(1, MAX_VOCAB + 1), step())


def test_the_first_backend_that_can_take_a_step_does_it() -> None:
    sampler = Sampler(4, {})
    first, second = Fixed(5), Fixed(9)
    sampler._backends = (first, second, *sampler._backends)
    for row in range(2):
        params = SamplingParams(temperature=0.0)
        sampler.add_row(RowTokens(row=row, params=params, prompt_ids=[1], output_ids=[]), seed=0)

    def drawn(row: int, width: int) -> list[int]:
        logits = torch.eye(width)[:1]
        return sampler.sample(logits, np.array([row]), np.array([0]), logits.clone).token_ids

    assert [drawn(0, 5), drawn(1, 9), drawn(1, 3)] == [[7], [7], [0]]
    assert first.settled == [1, 1] and second.settled == [0, 1]
