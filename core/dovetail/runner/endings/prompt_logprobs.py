"""Prompt logprobs: how likely the model found each prompt token, in chunks of a few hundred.

On a device they start with the step and are read with its draws. Prompt logits are not sampled
from, so the raw ones are reported whatever stage --logprobs-mode names.
Independent of sampling; rows that do not request them cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch

from dovetail.interfaces.data.step import NewRow, TokenLogprobs
from dovetail.runner.rows.batch import Batch, StepInputs
from dovetail.sampling.logprobs import read, tell, token_logprobs
from dovetail.sampling.sampler import NOT_FINITE
from dovetail_kernels.host_copy import HostCopy
from dovetail_kernels.logprobs.reference import best_of
from dovetail_kernels.sample.seen import on_device

CHUNK_TOKENS = 256
"""Positions whose logits are held at a time: 256 x vocabulary x 4 bytes."""

Told = tuple[dict[int, tuple[TokenLogprobs, ...]], dict[int, str]]
"""By index into a step's rows: logprobs, and faults."""
PromptFinish = Callable[[], Told]
RowFinish = Callable[[], list[TokenLogprobs] | None]
"""Waits for one row's logprobs; None if its logits are not finite."""


class LogitsOfRow(Protocol):
    """Computes logits from hidden states of one row. Shapes: hidden [S, E] -> [S, V]"""

    def __call__(self, hidden: torch.Tensor, row: int) -> torch.Tensor: ...


def nothing_told() -> Told:
    """Return an empty result: no row requests prompt logprobs."""
    return {}, {}


class PromptLogprobs:
    """The rows that request prompt logprobs, and how many candidates each.

    `tells_logits`: report logits instead of logprobs.
    """

    def __init__(self, *, tells_logits: bool = False) -> None:
        self._tells_logits = tells_logits
        self._num_top: dict[int, int] = {}

    def add_row(self, new: NewRow) -> None:
        """Start a row. One that drew tokens before a preemption has already reported its logprobs.

        Mutates: self
        """
        self._num_top.pop(new.row, None)
        wanted = new.sampling.prompt_logprobs
        if wanted is not None and len(new.token_ids) == new.num_prompt_tokens:
            self._num_top[new.row] = wanted

    def free_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._num_top.pop(row, None)

    def asks(self, inputs: StepInputs) -> bool:
        """Return whether some row of a step requests prompt logprobs."""
        return any(step.row in self._num_top for step in inputs.steps) if self._num_top else False

    def begin(
        self,
        batch: Batch,
        inputs: StepInputs,
        hidden: torch.Tensor,
        logits_of: LogitsOfRow,
    ) -> PromptFinish:
        """Start on the prompt tokens that follow the step's computed ones; return a function that
        waits for their logprobs. `logits_of` also takes the row. Shapes: hidden [T, E], logits_of
        [S, E] -> [S, V]"""
        begun: dict[int, RowFinish] = {}
        for index, step in enumerate(inputs.steps if self._num_top else ()):
            num_top = self._num_top.get(step.row)
            last = int(batch.num_prompt[step.row]) - 1
            count = min(step.start + step.num_tokens, last) - step.start
            if num_top is None or count <= 0:
                continue
            first = int(inputs.query_start[index])
            wanted = batch.tokens[step.row, step.start + 1 : step.start + 1 + count].copy()
            run = _at_once if hidden.device.type == "cpu" else _queued
            part = hidden[first : first + count]
            of_row = partial(logits_of, row=step.row)
            begun[index] = run(part, wanted, num_top, of_row, self._tells_logits)
        return partial(_finish, begun) if begun else nothing_told


def _finish(begun: Mapping[int, RowFinish]) -> Told:
    """Return the logprobs of rows, and the faults of rows whose logits are not finite."""
    found = {index: finish() for index, finish in begun.items()}
    faults = {index: NOT_FINITE for index, logprobs in found.items() if logprobs is None}
    return {
        index: tuple(logprobs) for index, logprobs in found.items() if logprobs is not None
    }, faults


def _chunks(
    hidden: torch.Tensor, token_ids: np.ndarray, logits_of: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
    """Yield the logits of a few hundred tokens at a time, and the tokens that follow them."""
    for start in range(0, len(token_ids), CHUNK_TOKENS):
        chunk = token_ids[start : start + CHUNK_TOKENS]
        yield logits_of(hidden[start : start + len(chunk)]), chunk


def _at_once(
    hidden: torch.Tensor,
    token_ids: np.ndarray,
    num_top: int,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    tells_logits: bool,
) -> RowFinish:
    """Compute the logprobs of one row's tokens now."""
    positions: list[TokenLogprobs] = []
    for logits, chunk in _chunks(hidden, token_ids, logits_of):
        wide, tops = logits.float(), [num_top] * len(chunk)
        if not bool(wide.amax(dim=1).isfinite().all()):
            return lambda: None
        positions += token_logprobs(wide, chunk.tolist(), tops, tells_logits=tells_logits)
    return lambda: positions


def _queued(
    hidden: torch.Tensor,
    token_ids: np.ndarray,
    num_top: int,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    tells_logits: bool,
) -> RowFinish:
    """Queue the logprobs of one row's tokens on the device without waiting."""
    parts = [
        (chunk.tolist(), tell(logits, on_device(chunk, logits.device), [num_top] * len(chunk)))
        for logits, chunk in _chunks(hidden, token_ids, logits_of)
    ]
    reading = HostCopy([chunk_logprobs.numbers for _, chunk_logprobs in parts])

    def finish() -> list[TokenLogprobs] | None:
        positions: list[TokenLogprobs] = []
        for (chunk, chunk_logprobs), numbers in zip(parts, reading.wait(), strict=True):
            if not np.isfinite(best_of(numbers)).all():
                return None
            positions += read(chunk_logprobs, numbers, chunk, tells_logits=tells_logits)
        return positions

    return finish
