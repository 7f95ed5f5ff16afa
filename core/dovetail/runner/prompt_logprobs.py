"""Prompt logprobs: how likely the model found each prompt token, a few hundred at a time.

Nothing is drawn from a prompt's logits, so they are told as the model gave them whatever
--logprobs-mode says of the stage. Knows no sampling; rows that do not ask cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail.interfaces.step import NewRow, TokenLogprobs
from dovetail.runner.batch import Batch, StepInputs
from dovetail.sampling.logprobs import token_logprobs
from dovetail.sampling.sampler import NOT_FINITE

CHUNK_TOKENS = 256
"""Positions whose logits are held at once: 256 x vocabulary x 4 bytes."""


class PromptLogprobs:
    """The rows that want logprobs of their prompt, and how many candidates each.

    `tells_logits`: logits stand where logprobs would.
    """

    def __init__(self, *, tells_logits: bool = False) -> None:
        self._tells_logits = tells_logits
        self._num_top: dict[int, int] = {}

    def add_row(self, new: NewRow) -> None:
        """Start a row. One that has drawn before a preemption gave its answer already.

        Mutates: self
        """
        self._num_top.pop(new.row, None)
        wanted = new.sampling.prompt_logprobs
        if wanted is not None and len(new.token_ids) == new.num_prompt_tokens:
            self._num_top[new.row] = wanted

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._num_top.pop(row, None)

    def compute(
        self,
        batch: Batch,
        inputs: StepInputs,
        hidden: torch.Tensor,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[dict[int, tuple[TokenLogprobs, ...]], dict[int, str]]:
        """Return, by index into the step's rows, logprobs of the prompt tokens that follow the
        computed ones, and faults. Shapes: hidden [T, E], logits_of [S, E] -> [S, V]"""
        found: dict[int, tuple[TokenLogprobs, ...]] = {}
        faults: dict[int, str] = {}
        if not self._num_top:
            return found, faults
        for index, step in enumerate(inputs.steps):
            num_top = self._num_top.get(step.row)
            last = int(batch.num_prompt[step.row]) - 1
            count = min(step.start + step.num_tokens, last) - step.start
            if num_top is None or count <= 0:
                continue
            first = int(inputs.query_start[index])
            wanted = batch.tokens[step.row, step.start + 1 : step.start + 1 + count].tolist()
            part = _of_row(
                hidden[first : first + count],
                wanted,
                num_top,
                logits_of,
                tells_logits=self._tells_logits,
            )
            if part is None:
                faults[index] = NOT_FINITE
            else:
                found[index] = part
        return found, faults


def _of_row(
    hidden: torch.Tensor,
    token_ids: list[int],
    num_top: int,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    tells_logits: bool,
) -> tuple[TokenLogprobs, ...] | None:
    """Return the logprobs of one row's tokens, or None when its logits are not finite."""
    found: list[TokenLogprobs] = []
    for start in range(0, len(token_ids), CHUNK_TOKENS):
        chunk = token_ids[start : start + CHUNK_TOKENS]
        logits = logits_of(hidden[start : start + len(chunk)]).float()
        if not bool(logits.amax(dim=1).isfinite().all()):
            return None
        found += token_logprobs(logits, chunk, [num_top] * len(chunk), tells_logits=tells_logits)
    return tuple(found)
