"""StageWorker: a fake pipeline stage without a model, for tests of executors.

The last stage samples a token for every row; the others require to have learned it before they get
the next step of that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import KVLayer, KVLayout, RowResult, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.worker import Worker
from dovetail_testing.tiny.transformer import HEAD_SIZE, KV_HEADS, WINDOW_TOKENS


class StageWorker(Worker):
    """The first stage caches two layers with a window, every other one a full layer."""

    info = Info(summary="test worker: a stage without a model", devices=("cpu",))
    capabilities = frozenset({"stages"})

    def __init__(self, options: Any, run: RunSpec) -> None:
        self.options = options
        self._rank = run.rank
        self._lengths: dict[int, int] = {}

    def load(self) -> None:
        """Load nothing."""

    def kv_layers(self) -> Sequence[KVLayer]:
        """Return the layers of this stage."""
        stage = self._rank.stage
        names = ("a", "b") if stage == 0 else (f"stage {stage}",)
        return [
            KVLayer(
                name=name,
                num_kv_heads=KV_HEADS,
                head_size=HEAD_SIZE,
                dtype="float32",
                window_tokens=WINDOW_TOKENS if stage == 0 else None,
            )
            for name in names
        ]

    def free_bytes(self) -> int:
        """Return a fixed size."""
        return 1 << 24

    def allocate(self, layout: KVLayout) -> None:
        """See that the layout has a group of either kind, and only this stage's layers."""
        own = {layer.name: layer.window_tokens for layer in self.kv_layers()}
        placed = {name: group.window_tokens for group in layout.groups for name in group.layers}
        if placed != own or {group.window_tokens for group in layout.groups} != {
            None,
            WINDOW_TOKENS,
        }:
            raise ValueError(f"stage {self._rank.stage} got the layout {layout}")

    def step(self, plan: StepPlan) -> StepResult:
        """Draw the length of each row as its token, on the last stage. Raises: ValueError for a
        token that was never reported"""
        for new in plan.new_rows:
            self._lengths[new.row] = len(new.token_ids)
        for row in plan.rows:
            if row.start + row.num_tokens > self._lengths[row.row]:
                raise ValueError(f"row {row.row} has no token at {row.start + row.num_tokens - 1}")
        if not self._rank.is_last_stage:
            return StepResult(step_id=plan.step_id, rows=())
        rows = tuple(
            RowResult(row=r.row, token_ids=(self._lengths[r.row],) if r.samples else ())
            for r in plan.rows
        )
        result = StepResult(step_id=plan.step_id, rows=rows)
        self._grow(result)
        return result

    def learn(self, result: StepResult) -> None:
        """Note what was drawn."""
        self._grow(result)

    def _grow(self, result: StepResult) -> None:
        for row in result.rows:
            self._lengths[row.row] += len(row.token_ids)
