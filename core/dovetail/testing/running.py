"""Drives a worker or an executor without an engine: rows, blocks and plans by hand.

Models are the kit's own (`dovetail.testing.tiny`, `dovetail.testing.models`): no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail import registry
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import RunSpec, Selection
from dovetail.interfaces.step import (
    KVLayer,
    KVLayout,
    NewRow,
    RowResult,
    RowStep,
    StepPlan,
    StepResult,
)
from dovetail.testing.tiny import tiny_layout, tiny_run

GREEDY = SamplingParams(temperature=0.0, max_tokens=32)
BLOCK_TOKENS = 4
NUM_BLOCKS = 64
MAX_ROWS = 4
CUE = 40


def run_spec(device: str, *, scripts: Sequence[Mapping[str, Any]] = (), **changes: Any) -> RunSpec:
    """Return the spec of a worker that runs the tiny transformer, or replays these scripts.

    With scripts, the last prompt token CUE + n picks script n.
    """
    if not scripts:
        return tiny_run(device=device, max_rows=MAX_ROWS, **changes)
    return tiny_run(
        device=device,
        max_rows=MAX_ROWS,
        model="dovetail.testing.models:ReplayModel",
        hf_config={"replay": list(scripts), "cue_base": CUE},
        **changes,
    )


def worker_selection(device: str) -> Selection:
    """Return the registered worker of a device."""
    return registry.choose("worker", "auto", query=device)


def layout_for(layers: Sequence[KVLayer]) -> KVLayout:
    """Return a small KV layout of these layers."""
    return tiny_layout(list(layers), num_blocks=NUM_BLOCKS, block_tokens=BLOCK_TOKENS)


class Rows:
    """Requests on a device, stepped by hand. `submit` runs a plan and returns its result."""

    def __init__(self, submit: Callable[[StepPlan], StepResult], num_groups: int = 1) -> None:
        self._submit = submit
        self._num_groups = num_groups
        self._tokens: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}
        self._blocks: dict[int, list[int]] = {}
        self._new: list[NewRow] = []
        self._freed: list[int] = []
        self._num_steps = 0

    def add(
        self,
        row: int,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = GREEDY,
        seed: int = 0,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Take a row for a prompt (with tokens drawn before, where it was preempted)."""
        num_blocks = NUM_BLOCKS // (MAX_ROWS + 1)
        first = 1 + row * num_blocks
        self._blocks[row] = list(range(first, first + num_blocks))
        self._tokens[row] = list(prompt)
        self._computed[row] = 0
        blocks = (tuple(self._blocks[row]),) * self._num_groups
        new = NewRow(
            row=row,
            request_id=f"row {row}",
            token_ids=tuple(prompt),
            num_prompt_tokens=len(prompt) if num_prompt_tokens is None else num_prompt_tokens,
            num_computed_tokens=0,
            blocks=blocks,
            sampling=sampling,
            seed=seed,
        )
        self._new.append(new)

    def free(self, row: int) -> None:
        """Give a row back in the next step."""
        self._freed.append(row)

    def step(self, counts: dict[int, int | None]) -> dict[int, RowResult]:
        """Run a step of {row: tokens to compute}; None: all that is known."""
        steps = tuple(self._row_step(row, count) for row, count in counts.items())
        self._num_steps += 1
        plan = StepPlan(
            step_id=self._num_steps,
            rows=steps,
            new_rows=tuple(self._new),
            freed_rows=tuple(self._freed),
        )
        self._new, self._freed = [], []
        result = self._submit(plan)
        assert result.step_id == plan.step_id
        assert [r.row for r in result.rows] == [s.row for s in steps]
        for answer in result.rows:
            self._tokens[answer.row] += answer.token_ids
        return {answer.row: answer for answer in result.rows}

    def generate(self, rows: Sequence[int], num_tokens: int) -> list[list[int]]:
        """Return `num_tokens` drawn tokens of each row, all rows stepped together."""
        drawn: dict[int, list[int]] = {row: [] for row in rows}
        for _ in range(num_tokens):
            for row, answer in self.step(dict.fromkeys(rows)).items():
                drawn[row] += answer.token_ids
        return [drawn[row] for row in rows]

    def _row_step(self, row: int, count: int | None) -> RowStep:
        start, known = self._computed[row], len(self._tokens[row])
        count = known - start if count is None else count
        self._computed[row] = start + count
        return RowStep(
            row=row,
            start=start,
            num_tokens=count,
            samples=start + count == known,
            new_blocks=((),) * self._num_groups,
        )
