"""RowConstraints: loads the constraints of a runner's rows, and masks and forces tokens by them."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.interfaces.data.spec import RunSpec, StructuredOutputSpec
from dovetail.interfaces.executor import Preparation
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.structured_output import CompiledConstraint
from dovetail.runner.endings.drawing import DrawingEnd
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.part import RunnerPart
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.mask_processor import ConstraintProcessor


class RowConstraints(RunnerPart):
    """Structured output."""

    prepares = (CompiledConstraint,)

    def __init__(self, spec: StructuredOutputSpec, run: RunSpec, drawing: DrawingEnd) -> None:
        self._cache = ConstraintCache(spec)
        self._run = run
        self._drawing = drawing
        drawing.cache = self._cache

    def open(self) -> None:
        """Read the vocabulary for constraints in the background. While weights are loaded it would
        take processor time from them."""
        self._cache.start()

    def prepare(self, item: Preparation) -> None:
        """Load a constraint. Raises: RequestError"""
        assert isinstance(item, CompiledConstraint)
        self._cache.prepare(item)

    def processors(self) -> Mapping[str, LogitsProcessor]:
        """Return the processor of masks. Mutates: the ending, to which it gives forced tokens"""
        self._masks = ConstraintProcessor(self._cache, self._run.model.vocab_size)
        # Steps ahead assume one token per draw.
        self._drawing.forcing = None if self._run.async_steps else self._masks
        return {"structured output": self._masks}

    def begin(self, inputs: StepInputs) -> None:
        """Start to fill the masks of the rows that draw. Mutates: self"""
        self._masks.begin(inputs.rows[inputs.samples].tolist())
