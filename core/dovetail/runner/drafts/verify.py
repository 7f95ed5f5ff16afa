"""Verification of drafts: draws position by position for as long as drafts are accepted.

One forward pass gives the logits after the last known token and after every draft. Drawing from
them in order, each time with all earlier tokens in place, equals single steps, with the same
penalties, processors and seeds. So drafts change no token, and the distribution is preserved: a
draft is a point mass, accepted with its own probability (Leviathan et al., 2023; Chen et al.,
2023). Drafts sampled from a known distribution, and all drafts under an inexact acceptance rule,
are passed to the draw as proposals; it decides between them and other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from dovetail.interfaces.acceptance import DraftProbabilities
from dovetail.interfaces.data.step import RowStep, TokenLogprobs
from dovetail.runner.rows.batch import Batch, StepInputs
from dovetail.sampling.acceptance import Proposals, grouped
from dovetail.sampling.sampler import Draws, Sampler


@dataclass(slots=True, kw_only=True)
class RowDraws:
    """One row's draws, or the fault of its first draw."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    fault: str | None = None


def one_by_one(inputs: StepInputs) -> StepInputs:
    """Return the inputs for attention: each draft, and the token before, as a row of its own.

    These rows share a block table and each sees one token more. So attention computes for each of
    them exactly what a single step would have computed, to the last bit.
    """
    if inputs.is_decoding:
        return _all_alone(inputs)
    repeats = np.ones(len(inputs.rows), dtype=np.int64)
    drafted = list(inputs.drafted)
    repeats[drafted] = inputs.counts[drafted]
    count = len(inputs.token_ids)
    if int(repeats.sum()) == count:
        return _all_alone(inputs)
    counts = np.repeat(np.where(repeats > 1, 1, inputs.counts), repeats)
    nth = np.arange(len(counts)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    query_start = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=query_start[1:])
    return replace(
        inputs,
        rows=np.repeat(inputs.rows, repeats),
        starts=np.repeat(inputs.starts, repeats) + nth,
        counts=counts,
        query_start=query_start,
    )


def _all_alone(inputs: StepInputs) -> StepInputs:
    """Return the inputs with every token as a row of its own."""
    count = len(inputs.token_ids)
    return replace(
        inputs,
        rows=inputs.token_rows,
        starts=inputs.positions,
        counts=np.ones(count, dtype=np.int64),
        query_start=np.arange(count + 1),
    )


def drawn_positions(inputs: StepInputs, sampling: np.ndarray) -> np.ndarray:
    """Return the indices of the step's tokens to sample after, row by row.

    Shapes: sampling [S] indices of rows -> [sum of 1 + drafts] int64
    """
    ends = inputs.query_start[1:][sampling]
    sizes = _sizes(inputs, sampling)
    firsts = np.repeat(ends - np.cumsum(sizes), sizes)
    return np.arange(len(firsts)) + firsts


def drawn_rows(inputs: StepInputs, sampling: np.ndarray) -> np.ndarray:
    """Return the row of each of `drawn_positions`. Shapes: sampling [S] -> [sum of 1 + drafts]"""
    if inputs.is_decoding:
        return inputs.token_rows
    found: np.ndarray = np.repeat(inputs.rows[sampling], _sizes(inputs, sampling))
    return found


def verify_drafts(
    sampler: Sampler,
    batch: Batch,
    inputs: StepInputs,
    sampling: np.ndarray,
    logits_of: Callable[[], torch.Tensor],
    probabilities: DraftProbabilities | None = None,
) -> list[RowDraws]:
    """Return the draws of each row in `sampling`: one token more than drafts were accepted.

    `logits_of` computes the logits at `drawn_positions`; it runs again if a processor needs fresh
    ones. `probabilities` has the distributions that drafts were sampled from (None: they were not).
    A fault after the first draw silently ends the row's draws: it recurs in the next step, unless
    the tokens before it ended the request.
    Mutates: sampling state; batch, which receives the drawn tokens
    """
    logits = logits_of()
    steps = [inputs.steps[i] for i in sampling.tolist()]
    offers = _Offers(sampler, steps, probabilities)
    if not offers.are_any:
        drawn = _verify_at_once(sampler, batch, inputs, sampling, steps, logits)
        if drawn is not None:
            return drawn
    sizes = _sizes(inputs, sampling)
    offsets = np.cumsum(sizes) - sizes
    found = [RowDraws() for _ in steps]
    live = list(range(len(steps)))
    turn = 0
    while live:
        rows = inputs.rows[sampling[live]]
        picked = offsets[live] + turn
        draws = sampler.sample(
            _select(logits, picked),
            rows,
            batch.lengths[rows] - batch.num_prompt[rows],
            lambda picked=picked: _select(logits_of(), picked),  # type: ignore[misc]
            offers.at(turn, live),
        )
        # A row that is faulty from the start stays in step with plans made ahead of its result.
        known = [i for i in range(len(live)) if turn == 0 or i not in draws.faults]
        batch.append(rows[known], [draws.token_ids[i] for i in known])
        live = [
            index
            for i, index in enumerate(live)
            if _comes_true(found[index], draws, i, steps[index].drafts)
        ]
        turn += 1
    return found


def _verify_at_once(
    sampler: Sampler,
    batch: Batch,
    inputs: StepInputs,
    sampling: np.ndarray,
    steps: Sequence[RowStep],
    logits: torch.Tensor,
) -> list[RowDraws] | None:
    """Draw at all positions in one call, then check how many drafts match. None if a row's draw
    depends on its earlier draws. Shapes: logits [sum of 1 + drafts, V]. Mutates: batch, which
    receives the drawn tokens"""
    if inputs.is_decoding:
        token_rows, rows = inputs.token_rows, inputs.rows
        positions = inputs.positions + 1 - batch.num_prompt[token_rows]
    else:
        sizes, rows = _sizes(inputs, sampling), inputs.rows[sampling]
        firsts = np.cumsum(sizes) - sizes
        drawn = batch.lengths[rows] - batch.num_prompt[rows]
        token_rows = np.repeat(rows, sizes)
        positions = np.arange(len(logits)) + np.repeat(drawn - firsts, sizes)
    tokens = sampler.sample_lines(logits, token_rows, positions)
    if tokens is None:
        return None
    found, num_true, first = [], [], 0
    for step in steps:
        num_accepted = 0
        for draft in step.drafts:
            if draft != tokens[first + num_accepted]:
                break
            num_accepted += 1
        found.append(RowDraws(token_ids=tokens[first : first + num_accepted + 1]))
        num_true.append(num_accepted)
        first += 1 + len(step.drafts)
    batch.accept(rows, num_true, [one.token_ids[-1] for one in found])
    return found


class _Offers:
    """The drafts of a step that are proposed to draws; none if draws alone decide."""

    def __init__(
        self, sampler: Sampler, steps: Sequence[RowStep], probabilities: DraftProbabilities | None
    ) -> None:
        self._steps = steps
        self._all = sampler.weighs_every_draft
        self._sampled: dict[int, Sequence[torch.Tensor]] = {}
        if probabilities is None:
            return
        for i, step in enumerate(steps):
            table = probabilities.of(step.row, step.drafts) if step.drafts else None
            if table is not None:
                self._sampled[i] = table

    @property
    def are_any(self) -> bool:
        """Return whether any draft is proposed."""
        return bool(self._all or self._sampled)

    def at(self, turn: int, live: Sequence[int]) -> Sequence[Proposals]:
        """Return the proposals for one draw of each row in `live`."""
        if not self.are_any:
            return ()
        own = [
            i
            for i, index in enumerate(live)
            if turn < len(self._steps[index].drafts) and (self._all or index in self._sampled)
        ]
        tables = [self._sampled.get(live[i]) for i in own]
        return grouped(
            own,
            [self._steps[live[i]].drafts[turn] for i in own],
            [None if table is None else table[turn] for table in tables],
        )


def _comes_true(one: RowDraws, draws: Draws, i: int, drafts: Sequence[int]) -> bool:
    """Record what was drawn for row i; return whether it is the draft. Mutates: one"""
    turn = len(one.token_ids)
    if i in draws.faults:
        one.fault = draws.faults[i] if turn == 0 else None
        return False
    token_id = draws.token_ids[i]
    one.token_ids.append(token_id)
    if i in draws.logprobs:
        one.logprobs.append(draws.logprobs[i])
    return turn < len(drafts) and drafts[turn] == token_id


def accepted(sampling: np.ndarray, draws: Sequence[RowDraws]) -> dict[int, int]:
    """Return the number of accepted drafts by the row's index in the step. Shapes: sampling [S]"""
    counts = (max(0, len(one.token_ids) - 1) for one in draws)
    return dict(zip(sampling.tolist(), counts, strict=True))


def _sizes(inputs: StepInputs, sampling: np.ndarray) -> np.ndarray:
    """Return the maximum number of tokens that each row draws. Shapes: [S]"""
    if inputs.is_decoding:
        return inputs.counts
    sizes = np.ones(len(inputs.steps), dtype=np.int64)
    drafted = list(inputs.drafted)
    sizes[drafted] = inputs.counts[drafted]
    chosen: np.ndarray = sizes[sampling]
    return chosen


def _select(logits: torch.Tensor, picked: np.ndarray) -> torch.Tensor:
    """Return the picked rows of logits, a view if possible; each is used once."""
    first = int(picked[0])
    if len(picked) == 1 or int(picked[-1]) - first == len(picked) - 1:
        return logits[first : first + len(picked)]
    return logits[torch.from_numpy(picked).to(logits.device)]


def drawn_after(inputs: StepInputs, sampling: np.ndarray) -> np.ndarray | None:
    """Return the indices of the step's tokens to sample after. None: after all, or nothing."""
    if inputs.is_decoding or not sampling.size:
        return None
    if inputs.drafted:
        after = drawn_positions(inputs, sampling)
    else:
        after = inputs.query_start[1:][sampling] - 1
    return None if len(after) == len(inputs.token_ids) else after
