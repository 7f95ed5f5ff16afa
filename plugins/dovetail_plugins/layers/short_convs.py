"""Short convolutions after matrices: y + conv(y), over a channel's last few inputs. Those of one
decoder layer have one state."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear.placement import Part
from dovetail.layers.state import RowStates
from dovetail_plugins.layers.mixers.recurrent import ShortConv

Step = tuple[Mapping[str, torch.Tensor], RowStates]
"""The states of a decoder layer's convolutions by name, and where a step's rows have theirs."""


class AddedConv(ShortConv):
    """factor (y + conv(y)) of the channels that `part` says; `name` is that of its state."""

    def __init__(
        self, context: BuildContext, name: str, part: Part, width: int, *, factor: float = 1.0
    ) -> None:
        super().__init__(context, (part,), width, bias=False)
        self.name, self.factor = name, factor
        self.part = self.state_part(name)

    def added(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Shapes: x [T, C] -> [T, C]. Mutates: the state"""
        states, rows = step
        found = x + self(x.contiguous(), states[self.name], rows)
        return found if self.factor == 1.0 else found * self.factor


def whole_part(size: int) -> Part:
    """Return the part of channels that every rank has."""
    return Part(name="", full=size, local=size, start=0)
