"""AdapterPlans: adapters that are laid out like one before are read without looking at each tensor.

Adapters that were trained in the same way have files of the same layout and differ in numbers
alone. Where the numbers of such a file go is noted once (Plan); after that its bytes are read and
copied to their places piece by piece, which also sees that they are finite. Knows no format of
files: the adapter's method says which layouts are equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterContent, AdapterWeights
from dovetail.layers.adapters import SlotWeights
from dovetail.runner.adapter_copies import Copies
from dovetail.runner.adapter_cutting import CutChange
from dovetail.runner.adapter_files import FileCopies
from dovetail.runner.adapter_memory import AdapterMemory

MAX_PLANS = 16
"""The plan not used for longest is forgotten beyond so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where the numbers of a layout go: what layers keep, by their paths, of a memory of `size`
    numbers. Parts of it are not filled if it `has_gaps`."""

    copies: FileCopies
    dtype: torch.dtype
    size: int
    has_gaps: bool
    linears: Mapping[str, CutChange]

    def filled(
        self, content: AdapterContent, memory: AdapterMemory
    ) -> dict[str, SlotWeights] | None:
        """Return what layers keep of an adapter, in memory taken for it; None where a number is not
        finite, or there are not as many as there were. Raises: ConfigError where the file was cut.
        Mutates: memory"""
        if len(content.memory) != self.copies.content_bytes:
            return None
        kept = memory.take(self.size, self.dtype, is_filled=not self.has_gaps)
        if self.copies.carry_out(content, kept.data_ptr()) >= 0:
            return None
        return {path: cut.of(kept) for path, cut in self.linears.items()}


class AdapterPlans:
    """The plans of layouts seen lately. Several threads may use it."""

    def __init__(self, memory: AdapterMemory) -> None:
        self._memory = memory
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()

    def clear(self) -> None:
        """Forget all, since layers have changed. Mutates: self"""
        self._plans.clear()

    def filled(self, weights: AdapterWeights) -> dict[str, SlotWeights] | None:
        """Return what layers keep of an adapter; None where that must be found out."""
        plan = self._plans.get(weights.layout)
        if plan is None or weights.content is None:
            return None
        return plan.filled(weights.content, self._memory)

    def note(
        self, weights: AdapterWeights, copies: Copies, linears: Mapping[str, CutChange]
    ) -> None:
        """Keep where the numbers of an adapter went that is nothing but low-rank sums of linear
        layers. Mutates: self"""
        if weights.layout is None or copies.prepared is None:
            return
        self._plans[weights.layout] = Plan(
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
