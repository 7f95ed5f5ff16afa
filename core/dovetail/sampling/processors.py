"""ProcessorChain: a runner's logits processors, called only for the rows that need them.

A processor that raises ends only the row it raised for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.logits import PIPELINE, STAGES, LogitsProcessor, RowTokens
from dovetail.registry.blame import described
from dovetail.sampling.step import DrawStep

log = logging.getLogger(__name__)
EARLY = PIPELINE[: PIPELINE.index("penalties")]
LATE = tuple(stage for stage in STAGES if stage not in EARLY)
"""Stages before and after the penalties."""
OWN_FILTERS = ("min_p",)
"""SamplingParams fields that the sampler handles itself if the processor is the built-in one."""


class ProcessorRaised(Exception):
    """A processor raised while it handled several rows together."""


class ProcessorChain:
    """Processors by stage, and for each the rows that need it.

    `processors` maps names to objects; within a stage they run by rank, then in that order.
    """

    def __init__(self, processors: Mapping[str, LogitsProcessor]) -> None:
        for name, processor in processors.items():
            if processor.stage not in STAGES:
                what = f'there is no stage "{processor.stage}" for logits processor "{name}".'
                raise BrokenPlugin(what, fix=f"the stages are {', '.join(STAGES)}")
        self._processors = dict(sorted(processors.items(), key=lambda pair: pair[1].rank))
        self._wanted: dict[str, set[int]] = {name: set() for name in processors}
        self._stages = {
            stage: [name for name, p in self._processors.items() if p.stage == stage]
            for stage in STAGES
        }

    def add_row(self, tokens: RowTokens) -> tuple[set[str], str | None]:
        """Start a row. Return the stages whose processors need it, and its fault if one raised.

        A lone filter that the sampler handles itself does not need the row.
        Mutates: self
        """
        stages: set[str] = set()
        wanted: list[str] = []
        for name, processor in self._processors.items():
            try:
                wanted += [name] if processor.wants(tokens.params) else []
            except Exception as error:
                return stages, _fault(name, error)
        for name in self._foreign(wanted):
            try:
                self._processors[name].add_row(tokens)
            except Exception as error:
                return stages, _fault(name, error)
            self._wanted[name].add(tokens.row)
            stages.add(self._processors[name].stage)
        return stages, None

    def _foreign(self, names: list[str]) -> list[str]:
        """Return the processors without a lone filter that the sampler handles itself."""
        filters = [name for name in names if self._processors[name].stage == "filter"]
        if len(filters) == 1 and self._processors[filters[0]].field in OWN_FILTERS:
            return [name for name in names if name != filters[0]]
        return names

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        for name, rows in self._wanted.items():
            if row not in rows:
                continue
            rows.discard(row)
            try:
                self._processors[name].remove_row(row)
            except Exception:
                log.exception("logits processor %s failed to forget row %d", name, row)

    def does(self, field: str, row: int) -> bool:
        """Return whether a processor implements this field for a row."""
        wanted = self._wanted.items()
        return any(row in rows and self._processors[name].field == field for name, rows in wanted)

    def late_stages(self, rows: Sequence[int]) -> frozenset[str]:
        """Return the stages after the penalties that one of the rows needs."""

        def is_needed(stage: str) -> bool:
            return any(not self._wanted[name].isdisjoint(rows) for name in self._stages[stage])

        return frozenset(filter(is_needed, LATE))

    def run_early(self, logits: torch.Tensor, step: DrawStep) -> None:
        """Run the stages before the penalties, as `run`. Mutates: logits, step.faults"""
        for stage in EARLY:
            self.run(stage, logits, range(len(step.row_list)), step)

    def run(self, stage: str, logits: torch.Tensor, indices: Sequence[int], step: DrawStep) -> None:
        """Run a stage over logits whose row i is the step's row indices[i], except faulty rows.

        Mutates: logits, step.faults
        Raises: ProcessorRaised, unless step.is_apart
        """
        rows = [-1 if i in step.faults else step.row_list[i] for i in indices]
        if not step.is_apart:
            self._run_together(stage, logits, rows)
            return
        for i, fault in self._run_apart(stage, logits, rows).items():
            step.faults[indices[i]] = fault

    def _run_together(self, stage: str, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """Run a stage's processors. `rows` are the row numbers of the logits, in order.

        Mutates: logits
        Raises: ProcessorRaised
        """
        for name in self._stages[stage]:
            pairs = self._pairs(name, rows)
            if not pairs:
                continue
            try:
                self._processors[name].apply(logits, pairs)
            except Exception as error:
                raise ProcessorRaised(_fault(name, error)) from error

    def _run_apart(self, stage: str, logits: torch.Tensor, rows: Sequence[int]) -> dict[int, str]:
        """Run a stage's processors row by row; return the faults by index into logits.

        Each gets a copy of its row: a failing one may have written anywhere.
        Mutates: logits
        """
        faults: dict[int, str] = {}
        for name in self._stages[stage]:
            for index, row in self._pairs(name, rows):
                if index in faults:
                    continue
                own = logits[index : index + 1].clone()
                try:
                    self._processors[name].apply(own, [(0, row)])
                except Exception as error:
                    log.exception("logits processor %s failed for row %d", name, row)
                    faults[index] = _fault(name, error)
                else:
                    logits[index] = own[0]
        return faults

    def _pairs(self, name: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        wanted = self._wanted[name]
        return [(i, row) for i, row in enumerate(rows) if row in wanted] if wanted else []


def _fault(name: str, error: Exception) -> str:
    return f'logits processor "{name}" failed: {described(error)}'
