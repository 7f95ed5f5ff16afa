"""What a step's drafts are made of: known tokens laid out, drafts by the drafter's own chances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import NewRow
from dovetail.interfaces.drafter import WorkerDrafter
from dovetail.runner.drafts.chain import LEFT_OUT, DraftChain, known_lines
from dovetail.runner.rows.batch import Batch
from dovetail_kernels.cpu.library import missing_reason
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.weight import Weight

VOCAB, SIZE, MOST = 40, 32, 5
LENGTHS, BLOCKS = (7, 15, 11), ((1, 2, 3), (4, 5, 6, 7, 8), (9, 10, 11, 12))
needs_native = pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or "")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_last_tokens_come_first_and_states_are_picked_alike() -> None:
    rows, starts, limits = np.array([4, 7, 2]), np.array([10, 0, 5]), np.array([11, 3, 7])
    known = known_lines(rows, starts, limits)
    lines = list(zip(known.rows.tolist(), known.positions.tolist(), strict=True))
    assert lines == [(4, 10), (7, 2), (2, 6), (7, 0), (7, 1), (2, 5)]
    by_rows = [(4, 10), (7, 0), (7, 1), (7, 2), (2, 5), (2, 6)]
    assert [by_rows[place] for place in known.picked] == lines


def packed(outputs: int, inputs: int, factor: float) -> Packed:
    return Packed(Weight(format="float32", values=factor * torch.randn(outputs, inputs)))


class Continued:
    """A drafter that continues states: the model's are twice as wide as its own."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.capabilities = frozenset({"on_worker", "hidden_states", "by_depth"})
        self.table, self.head = packed(VOCAB, SIZE, 1.0), packed(VOCAB, SIZE, 1.0)
        self.mixes = [packed(SIZE, size, 0.2) for size in (2 * SIZE, SIZE, SIZE)]

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        assert states is not None
        return self.mixes[min(depth, 2)](states, None, self.table.rows(token_ids))

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        return self.head(states)


class Bigrams:
    """A drafter of the token that most likely follows a token, `sure` of what comes after even and
    after odd ones. It notes the layouts that it was called with."""

    def __init__(self, sure: tuple[float, float]) -> None:
        torch.manual_seed(5)
        rows = torch.randn(VOCAB, SIZE) * torch.tensor(sure).repeat(VOCAB // 2)[:, None]
        self.table, self.head = (
            Packed(Weight(format="float32", values=values))
            for values in (rows, 0.2 * torch.randn(VOCAB, SIZE))
        )
        self.capabilities = frozenset({"on_worker"})
        self.layouts: list[BatchLayout] = []

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        self.layouts.append(layouts[0])
        return self.table.rows(token_ids)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        return self.head(states)

    def chances_after(self, token: int) -> torch.Tensor:
        return self.head(self.table.rows(torch.tensor([token])))[0].softmax(-1)

    def drafts(self, token: int, most: int, least: float) -> tuple[list[int], int]:
        """Return what follows a token, and how much of it is likely."""
        drafts, chance = [], 1.0
        for depth in range(most):
            chances = self.chances_after(token)
            token = int(chances.argmax())
            drafts.append(token)
            chance *= float(chances[token])
            if chance < least:
                return drafts, depth
        return drafts, most


def batch_of_three() -> Batch:
    """Return a batch of rows of LENGTHS tokens."""
    batch = Batch(3, 40, 1, 4)
    for row, (length, blocks) in enumerate(zip(LENGTHS, BLOCKS, strict=True)):
        batch.add_row(NewRow(
            row=row, request_id=str(row), token_ids=tuple(range(row, row + length)), seed=row,
            num_prompt_tokens=3, num_computed_tokens=length - 1, blocks=(blocks,),
            sampling=SamplingParams(),
        ))  # fmt: skip
    return batch


def begun(*sure: float) -> tuple[DraftChain, Bigrams, Batch]:
    """Return a chain over rows of LENGTHS tokens."""
    batch = batch_of_three()
    drafter = Bigrams((sure[0], sure[-1]))
    drafting = cast(WorkerDrafter, drafter)
    return DraftChain(drafter.advance, drafting, batch, MOST), drafter, batch


def drafted(chain: DraftChain, *lags: int, wants: Sequence[int], skipped: Any = None) -> Any:
    """Draft for the first rows, so many of whose tokens were not seen yet; what is not proven is
    told to be the drafter's own."""
    rows, limits = np.arange(len(lags)), np.array(LENGTHS[: len(lags)])
    behind = np.zeros(3, dtype=np.int64) if skipped is None else np.array(skipped)
    given = rows, limits - lags, limits, np.array(wants), None, behind
    found = chain.run(*given)
    while found is not None and not found.are_proven:
        chain.prove(found, found.drafts.copy())
        found = chain.run(*given)
    return found


@needs_native
@pytest.mark.parametrize("count", [1, 2, 3])
def test_drafts_go_on_while_they_are_likely(count: int) -> None:
    chain, drafter, _ = begun(4.0, 1.0)
    wants = [4, 5, 2][:count]
    found = drafted(chain, *[1, 3, 2][:count], wants=wants)
    least = 0.2 if count <= 2 else 0.5
    lasts = [row + length - 1 for row, length in enumerate(LENGTHS[:count])]
    for row, (last, most) in enumerate(zip(lasts, wants, strict=True)):
        drafts, likely = drafter.drafts(last, most, least)
        assert found.drafts[row, : len(drafts)].tolist() == drafts
        assert found.made[row] == len(drafts)
        assert found.likely[row] == (max(1, likely) if count <= 2 else likely)


@needs_native
def test_states_go_on_with_their_rows() -> None:
    drafter, batch = Continued(), batch_of_three()
    chain = DraftChain(drafter.advance, cast(WorkerDrafter, drafter), batch, MOST)
    given, rows, limits = torch.randn(5, 2 * SIZE), np.arange(3), np.array(LENGTHS) - 1
    starts, wants = limits - [1, 3, 1], np.array([2, 4, 3])
    found = chain.run(rows, starts, limits, wants, given, np.zeros(3, dtype=np.int64))
    assert found is not None and found.made.max() > 2, "states are to go on"
    for row, last in enumerate((0, 3, 4)):
        states, token = given[last : last + 1], int(batch.tokens[row, limits[row]])
        for depth in range(found.made[row]):
            tokens = torch.tensor([token])
            states = drafter.advance(tokens, tokens, [], states, depth)
            token = int(drafter.logits(states, depth).argmax())
            assert found.drafts[row, depth] == token


@needs_native
def test_of_many_rows_an_unlikely_draft_is_verified_now_and_then() -> None:
    chain, drafter, _ = begun(1.0)
    assert float(drafter.chances_after(6).max()) < 0.5, "the first row's draft is to be unlikely"
    drafted(chain, 1, 1, 1, wants=[3] * 3)
    chain.begin(0)
    counts = [drafted(chain, 1, 1, 1, wants=[3] * 3).likely[0] for _ in range(2 * LEFT_OUT)]
    (first, *between), (second, *rest) = counts[:LEFT_OUT], counts[LEFT_OUT:]
    assert first == second == 1 and not any(between + rest)
    chain.begin(0)
    assert drafted(chain, 1, 1, 1, wants=[3] * 3).likely[0] == 1, "another request's first"
    assert [drafted(chain, 1, 1, wants=[3] * 2).likely[0] for _ in range(3)] == [1, 1, 1]


@needs_native
def test_an_unlikely_draft_that_came_true_is_followed_by_another() -> None:
    chain, _, _ = begun(1.0)
    limits, behind = np.array([4, 5, 6]), np.zeros(3, dtype=np.int64)
    counts = []
    for grown in (0, 2, 2, 1, 1):
        limits = limits + grown
        given = np.arange(3), limits - 1, limits, np.array([1, 1, 1]), None, behind
        found = chain.run(*given)
        assert found is not None
        counts.append(found.likely[0])
    assert counts == [1, 1, 1, 0, 0]


@needs_native
def test_a_row_that_begins_anew_reads_no_block_before() -> None:
    chain, drafter, batch = begun(4.0)
    drafted(chain, 1, 2, wants=[2, 2])
    drafter.layouts.clear()
    found = drafted(chain, 1, 2, wants=[2, 2], skipped=[0, 3, 0])
    assert not drafter.layouts, "all that runs was recorded before"
    known, own = chain._known, chain._chain
    assert own is not None
    assert known.positions[:3].tolist() == [6, 14, 13]  # what the layers are told
    assert known.slots[:3].tolist() == [10, 30, 29]  # where they write
    assert known.lens[:3].tolist() == [7, 3, 2]  # how much they see
    assert known.blocks[:3, 0].tolist() == [1, 7, 7]
    assert found.made.tolist() == [2, 2], "both rows are to go on"
    assert own.lines.lens[:2].tolist() == [8, 4]
    assert own.lines.positions[:2].tolist() == [7, 15]
    assert own.lines.blocks[:2, 0].tolist() == [1, 7]
    assert own.lines.slots[:2].tolist() == batch.tables[0].slots(
        np.array([0, 1]), np.array([7, 15])
    ).tolist()  # fmt: skip


@needs_native
def test_other_drafts_than_the_drafters_end_recording() -> None:
    chain, _, _ = begun(4.0)
    rows, limits = np.arange(2), np.array(LENGTHS[:2])
    wants, behind = np.array([3, 3]), np.zeros(3, dtype=np.int64)
    found = chain.run(rows, limits - 1, limits, wants, None, behind)
    assert found is not None and not found.are_proven
    chain.prove(found, found.drafts + 1)
    assert not chain.takes(1)
