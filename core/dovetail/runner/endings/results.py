"""RowResults: assembles a step's draws into one result per row.

A fault that belongs to one row is reported in that row's result. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from dovetail.interfaces.data.step import RowResult, RowStep, TokenLogprobs
from dovetail.runner.drafts import verify
from dovetail.sampling.sampler import NOTHING_LEFT, Draws


def row_results(
    steps: Sequence[RowStep],
    sampling: Sequence[int],
    draws: Draws,
    prompt: dict[int, tuple[TokenLogprobs, ...]],
    prompt_faults: dict[int, str],
    forced: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> tuple[RowResult, ...]:
    """Return one result per row. `sampling` are the indices of the rows that drew; `forced` are
    tokens that follow a draw without one of their own."""
    drawn = {index: i for i, index in enumerate(sampling)}
    results = []
    for index, step in enumerate(steps):
        i = drawn.get(index)
        fault = prompt_faults.get(index) or (draws.faults.get(i) if i is not None else None)
        if fault is not None:
            results.append(_faulty(step, fault))
            continue
        logprobs = draws.logprobs.get(i) if i is not None else None
        results.append(
            RowResult(
                row=step.row,
                token_ids=() if i is None else (draws.token_ids[i], *forced.get(i, ())),
                logprobs=() if logprobs is None else (logprobs,),
                prompt_logprobs=prompt.get(index, ()),
            )
        )
    return tuple(results)


def verified_results(
    steps: Sequence[RowStep],
    sampling: Sequence[int],
    draws: Sequence[verify.RowDraws],
    prompt: dict[int, tuple[TokenLogprobs, ...]],
    prompt_faults: dict[int, str],
) -> tuple[RowResult, ...]:
    """Return one result per row of a step with drafts. `draws` belong to the rows in `sampling`."""
    if len(draws) == len(steps) and not (prompt or prompt_faults):
        return tuple([_verified(*each, (), None) for each in zip(steps, draws, strict=True)])
    drawn = dict(zip(sampling, draws, strict=True))
    return tuple(
        _verified(step, drawn.get(i), prompt.get(i, ()), prompt_faults.get(i))
        for i, step in enumerate(steps)
    )


def _verified(
    step: RowStep,
    drawn: verify.RowDraws | None,
    prompt: tuple[TokenLogprobs, ...],
    fault: str | None,
) -> RowResult:
    """Return the result of one row of a step with drafts. `drawn` None: it did not sample."""
    fault = fault or (drawn.fault if drawn is not None else None)
    if fault is not None:
        return _faulty(step, fault)
    if drawn is None:
        return RowResult(row=step.row, prompt_logprobs=prompt)
    if not (drawn.logprobs or prompt):
        return RowResult(row=step.row, token_ids=tuple(drawn.token_ids))
    return RowResult(
        row=step.row,
        token_ids=tuple(drawn.token_ids),
        logprobs=tuple(drawn.logprobs),
        prompt_logprobs=prompt,
    )


def with_drafts(
    rows: tuple[RowResult, ...], chosen: Sequence[int], drafts: Sequence[Sequence[int]]
) -> tuple[RowResult, ...]:
    """Return results with drafts added to the rows in `chosen`. A row without drafts had only
    unlikely ones, which were left out."""
    results = list(rows)
    for index, drafted in zip(chosen, drafts, strict=True):
        results[index] = msgspec.structs.replace(
            results[index], drafts=tuple(drafted), has_unlikely_drafts=not drafted
        )
    return tuple(results)


def _faulty(step: RowStep, fault: str) -> RowResult:
    status = 400 if fault == NOTHING_LEFT else 500
    return RowResult(row=step.row, fault=fault, fault_status=status)
