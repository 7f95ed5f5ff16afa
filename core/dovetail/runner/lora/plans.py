"""AdapterPlans: loads an adapter faster if one with the same file layout was loaded before.

Adapters trained in the same way have files of the same layout and differ only in numbers. A Plan
notes once where the numbers of such a file go. After that its bytes are read and copied piece by
piece, with a check that they are finite. Independent of file formats: the adapter method says which
layouts are equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterContent, AdapterWeights
from dovetail.layers.adapters.linear import SlotWeights
from dovetail.runner.lora.copies import Copies
from dovetail.runner.lora.cutting import CutChange
from dovetail.runner.lora.files import FileCopies
from dovetail.runner.lora.memory import AdapterMemory

MAX_PLANS = 16
"""Beyond this many, the least recently used plan is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPlan:
    """Where the numbers of a layout go: the layers' changes by path, as places in a memory of
    `size` numbers. With `has_gaps`, parts of it are not filled."""

    copies: FileCopies
    dtype: torch.dtype
    size: int
    has_gaps: bool
    linears: Mapping[str, CutChange]

    def filled(
        self, content: AdapterContent, memory: AdapterMemory
    ) -> dict[str, SlotWeights] | None:
        """Return the layers' weights of an adapter, in newly taken memory. None if a number is not
        finite or the file's size differs. Raises: ConfigError if the file was truncated.
        Mutates: memory"""
        if len(content.memory) != self.copies.content_bytes:
            return None
        weights = memory.take(self.size, self.dtype, is_filled=not self.has_gaps)
        if self.copies.carry_out(content, weights.data_ptr()) >= 0:
            return None
        return {path: cut.of(weights) for path, cut in self.linears.items()}


class AdapterPlans:
    """The plans of recently used layouts. Thread-safe."""

    def __init__(self, memory: AdapterMemory) -> None:
        self._memory = memory
        self._plans: OrderedDict[Hashable, AdapterPlan] = OrderedDict()

    def clear(self) -> None:
        """Drop all plans, since layers have changed. Mutates: self"""
        self._plans.clear()

    def filled(self, weights: AdapterWeights) -> dict[str, SlotWeights] | None:
        """Return the layers' weights of an adapter; None if it has no plan or the plan fails."""
        plan = self._plans.get(weights.layout)
        if plan is None or weights.content is None:
            return None
        return plan.filled(weights.content, self._memory)

    def note(
        self, weights: AdapterWeights, copies: Copies, linears: Mapping[str, CutChange]
    ) -> None:
        """Save a plan for an adapter that consists of low-rank sums of linear layers only.
        Mutates: self"""
        if weights.layout is None or copies.prepared is None:
            return
        self._plans[weights.layout] = AdapterPlan(
            copies=copies.prepared,
            dtype=copies.dtype,
            size=copies.size,
            has_gaps=copies.has_gaps,
            linears=linears,
        )
        while len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)


def verify_any(where: str, weights: AdapterWeights) -> None:
    """Raises: ConfigError for an adapter that changes nothing"""
    others = (weights.prompt, weights.added_inputs, weights.added_outputs)
    if not weights.changes and all(one is None for one in others):
        raise ConfigError(
            "its file has no tensors: every answer would be the base model's.",
            where=where,
            fix="save the adapter again, with the weights that were trained.",
        )
