"""RunnerPart: one feature of a runner, which follows its steps.

The runner walks a list of parts and knows none by name (`parts.py`); only features that a run uses
are in it. A subclass overrides the calls that it needs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import UnionType
from typing import ClassVar

import numpy as np
import torch

from dovetail.interfaces.data.adapter_spec import AdapterFacts
from dovetail.interfaces.data.step import CachedLayer, KVLayout, NewRow, StepPlan, StepResult
from dovetail.interfaces.executor import Preparation
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.step_reader import BegunStep, Computed


class RunnerPart:
    """A part that does nothing. The calls are listed in the order in which a runner makes them; any
    of them may change the part itself. `prepares`: the items that its `prepare` takes."""

    prepares: ClassVar[tuple[type | UnionType, ...]] = ()

    def start(self) -> None:
        """Begin what goes on while weights are loaded. Raises: ConfigError"""

    def attach(self, loaded: LoadedModel) -> None:
        """Note a loaded model; the part of an earlier one is dropped. Mutates: the model"""

    def weights(self) -> Sequence[torch.Tensor]:
        """Return the tensors of the part that sleep with the model's."""
        return ()

    def layers(self) -> Sequence[CachedLayer]:
        """Return what the part caches besides the model."""
        return ()

    def own_layout(self, num_blocks: int) -> KVLayout | None:
        """Return a layout of the part's own layers; None if it has none."""
        return None

    def processors(self) -> Mapping[str, LogitsProcessor]:
        """Return new logits processors, by name. Raises: BrokenPlugin"""
        return {}

    def allocate(self, storage: Allocated) -> None:
        """Create what the part holds for a layout. Raises: ConfigError"""

    def open(self) -> None:
        """Prepare for the first request: the runner is warm. Raises: ConfigError"""

    def prepare(self, item: Preparation) -> AdapterFacts | None:
        """Load an item of a class in `prepares`, in another thread than steps. Raises:
        RequestError"""
        raise NotImplementedError(f"{type(self).__name__} names no class in `prepares`")

    def before(self, plan: StepPlan) -> None:
        """Move memory as a plan says, before its rows change. Mutates: caches, layers"""

    def free_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""

    def add_row(self, new: NewRow) -> None:
        """Start a row, which the batch has already."""

    def added_tokens(self, new: NewRow) -> int:
        """Return how many token ids a new row may have beyond the model's vocabulary."""
        return 0

    def follow(self, plan: StepPlan) -> None:
        """Carry out the rest of a plan, after its rows have changed."""

    def must_know(self, plan: StepPlan) -> bool:
        """Return whether the host must know all drawn tokens before the step."""
        return False

    def idle(self, plan: StepPlan) -> None:
        """Take part in a step without rows."""

    def begin(self, inputs: StepInputs) -> None:
        """Begin what goes on during the forward pass."""

    def around(self, inputs: StepInputs) -> AbstractContextManager[None] | None:
        """Return what surrounds the forward pass of a step, or of half a step, if anything."""
        return None

    def before_pass(self, token_ids: torch.Tensor) -> None:
        """Note that the model runs on the tokens of a step, or of half a step. Shapes: [T]"""

    def after(self, step: BegunStep, computed: Computed) -> None:
        """Process a step whose draws have begun. Mutates: step"""

    def around_rows(self, row: int | np.ndarray, count: int) -> AbstractContextManager[None] | None:
        """Return what surrounds the use of `count` vectors of one row, or of one vector of each of
        several rows, after the forward pass, if anything."""
        return None

    def release(self) -> Sequence[torch.Tensor]:
        """Release what was allocated; return tensors whose memory is to be freed."""
        return ()

    def close(self) -> None:
        """Stop all background work. May be called twice."""


class Ending(RunnerPart):
    """What becomes of the hidden states of steps; the first part of a runner. `around_vectors` is
    the `around_rows` of all parts; `second_text` marks the tokens of second texts in the step (see
    ForwardContext)."""

    around_vectors: Callable[[int | np.ndarray, int], AbstractContextManager[None]]
    second_text: torch.Tensor | None = None

    @abstractmethod
    def end(self, step: BegunStep, computed: Computed) -> None:
        """Start to make a step's results. Mutates: step, rows, sampling state"""

    def mark_failed(self, row: int, fault: str) -> None:
        """Remember why a row's results are invalid."""

    def reads_all(self, inputs: StepInputs) -> bool:
        """Return whether it needs hidden states of tokens after which nothing is drawn."""
        return False

    def must_know(self, plan: StepPlan) -> bool:
        """Return whether the host must know all drawn tokens before the step: it has drafts."""
        return any(step.drafts or step.num_drafts for step in plan.rows)

    def warm_up(self) -> None:
        """Compile what later steps may need."""

    def learn(self, result: StepResult) -> None:
        """Record tokens that another rank drew in a step begun here. Mutates: rows"""

    def make_up(self, step_id: int) -> None:
        """Append a token for each draw of an artificial step on another rank. Mutates: rows"""
