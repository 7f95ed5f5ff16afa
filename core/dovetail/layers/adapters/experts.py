"""Adapters of experts: low-rank changes by slot and expert, separate from the experts' kernel.

Rows whose adapter changes experts are computed expert by expert, at the speed of a reference; other
rows are not touched. Shape letters: A experts picked per token, P parts fused along the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from dovetail.interfaces.quantization import LinearSpec
from dovetail.layers.adapters.linear import SlotWeights
from dovetail.layers.linear.joints import Joint
from dovetail.layers.linear.placement import Part
from dovetail.parallel.groups import Group

if TYPE_CHECKING:
    from dovetail.layers.moe.experts import Experts

Key = tuple[int, str]
"""An expert's number, and the name of its matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMatrix:
    """How one matrix of every expert is sharded."""

    parts: tuple[Part, ...]
    spec: LinearSpec
    group: Group
    full_in_size: int
    is_input_split: bool
    joints: Mapping[str, Joint] = field(default_factory=dict)


class ExpertAdapters:
    """The adapters of one layer's experts, by slot."""

    def __init__(self) -> None:
        self._slots: dict[int, Mapping[Key, SlotWeights]] = {}

    def put(self, slot: int, changes: Mapping[Key, SlotWeights]) -> None:
        """Put changes into a slot, or empty it. Mutates: self"""
        self._slots.pop(slot, None)
        if changes:
            self._slots[slot] = changes

    def changed(
        self,
        experts: Experts,
        x: torch.Tensor,
        weights: torch.Tensor,
        picked: torch.Tensor,
        slots: torch.Tensor,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Return the outputs with each row's adapter; `out` are the experts' own.

        Shapes: x, out [T, E], weights and picked [T, A], slots [T] -> [T, E]
        """
        for slot, changes in self._slots.items():
            rows = (slots == slot).nonzero().flatten()
            if len(rows):
                own = _outputs(experts, changes, x[rows], weights[rows], picked[rows])
                out = out.index_copy(0, rows, own.to(out))
        return out


def _outputs(
    experts: Experts,
    changes: Mapping[Key, SlotWeights],
    x: torch.Tensor,
    weights: torch.Tensor,
    picked: torch.Tensor,
) -> torch.Tensor:
    """Return the weighted sums of the changed experts' outputs. Shapes: -> [T, E]"""
    out = torch.zeros_like(x)
    for expert in picked.unique().tolist():
        tokens, places = (picked == expert).nonzero(as_tuple=True)
        halves = _product(experts, changes, experts.first, expert, x[tokens])
        inner = experts.gate.joined(halves)
        outputs = _product(experts, changes, "down_proj", expert, inner)
        out.index_add_(0, tokens, outputs * weights[tokens, places].unsqueeze(1).to(outputs))
    return out


def _product(
    experts: Experts, changes: Mapping[Key, SlotWeights], leaf: str, expert: int, x: torch.Tensor
) -> torch.Tensor:
    """Return x times one changed matrix of an expert. Shapes: x [T, I] -> [T, O]"""
    out = experts.halves(leaf, expert, x)
    change = changes.get((expert, leaf))
    if change is None or change.down is None or change.up is None:
        return out
    ups = change.up.to(x).split(experts.specs[leaf].out_sizes, dim=1)
    pairs = zip(change.down.to(x), ups, strict=True)
    return out + torch.cat([x @ down.t() @ up for down, up in pairs], dim=1)
