"""AdapterPlans: adapters that are laid out like one before are read without looking at each tensor.

Adapters that were trained in the same way have files of the same layout and differ in numbers
alone. Where the numbers of such a file go is noted once (Plan); after that its bytes are read and
copied to their places piece by piece, which also sees that they are finite. Knows no format of
files: the adapter's method says which layouts are equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.interfaces.adapter import AdapterContent, AdapterWeights
from dovetail.layers.adapters import SlotWeights
from dovetail.runner.adapter_cutting import LINE_BYTES, Copies, strides_of
from dovetail.runner.adapter_files import FileCopies

MAX_PLANS = 16
"""The plan not used for longest is forgotten beyond so many."""

Shape = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where the numbers of a layout go: by the path of a layer, the shapes and first places of
    `down` and `up` in one tensor of `size` numbers. Parts of it are not filled if it `has_gaps`."""

    copies: FileCopies
    dtype: torch.dtype
    size: int
    has_gaps: bool
    layers: Mapping[str, tuple[tuple[Shape, int], tuple[Shape, int]]]

    def filled(self, content: AdapterContent) -> dict[str, SlotWeights] | None:
        """Return what layers keep of an adapter; None where a number is not finite, or there are
        not as many as there were. Raises: ConfigError where the file was cut"""
        if len(content.memory) != self.copies.content_bytes:
            return None
        make = torch.zeros if self.has_gaps else torch.empty
        kept = make(self.size, dtype=self.dtype)
        if self.copies.carry_out(content, kept.data_ptr()) >= 0:
            return None
        return {
            path: SlotWeights(down=_placed(kept, *down), up=_placed(kept, *up))
            for path, (down, up) in self.layers.items()
        }


class AdapterPlans:
    """The plans of layouts seen lately. Several threads may use it."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()

    def clear(self) -> None:
        """Forget all, since layers have changed. Mutates: self"""
        self._plans.clear()

    def filled(self, weights: AdapterWeights) -> dict[str, SlotWeights] | None:
        """Return what layers keep of an adapter; None where that must be found out."""
        plan = self._plans.get(weights.layout)
        if plan is None or weights.content is None:
            return None
        return plan.filled(weights.content)

    def note(
        self, weights: AdapterWeights, copies: Copies, linears: Mapping[str, SlotWeights]
    ) -> None:
        """Keep where the numbers of an adapter went that is nothing but low-rank sums of linear
        layers. Mutates: self"""
        if weights.layout is None or copies.prepared is None:
            return
        self._plans[weights.layout] = _plan_of(copies, copies.prepared, linears)
        while len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)


def _plan_of(copies: Copies, told: FileCopies, linears: Mapping[str, SlotWeights]) -> Plan:
    """Return the plan of copies that have been carried out as they were `told`. Mutates: told"""
    first = copies.targets[0]
    layers, moved, size, kept = {}, {}, 0, 0
    for path, slot in linears.items():
        assert slot.down is not None and slot.up is not None, "a change without matrices"
        own = []
        for tensor in (slot.down, slot.up):
            size += -size % (LINE_BYTES // first.itemsize)
            moved[tensor.data_ptr()] = size * first.itemsize
            own.append((tensor.shape, size))
            count = tensor.numel()
            size, kept = size + count, kept + count
        layers[path] = (own[0], own[1])
    _move(told.copies.places, moved)
    return Plan(
        copies=told,
        dtype=first.dtype,
        size=size,
        has_gaps=told.copies.num_numbers < kept,
        layers=layers,
    )


def _move(places: np.ndarray, moved: Mapping[int, int]) -> None:
    """Have targets count bytes from the start of one tensor. `moved` are the new places of tensors
    by their addresses. Shapes: places [C, FIELDS]. Mutates: places"""
    starts = np.array(sorted(moved))
    shifts = np.array([moved[address] for address in starts.tolist()]) - starts
    places[:, 1] += shifts[np.searchsorted(starts, places[:, 1], side="right") - 1]


def _placed(kept: torch.Tensor, shape: Shape, place: int) -> torch.Tensor:
    return kept.as_strided(shape, strides_of(shape), place)
