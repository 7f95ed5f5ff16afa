"""Sinks: one learned logit per head in the softmax of attention, which no key has.

Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2023, section 3.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear.placement import Part, Placement, WeightHolder, mark_axes, place_parts
from dovetail.parallel.groups import tensor_group


class Sinks(WeightHolder):
    """The sinks of this rank's heads, in float32 as kernels take them. Shapes: weight [H]"""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        group, full = tensor_group(context.rank), context.model.num_heads
        local = group.share(full, "attention heads")
        self.part = Part(name="", full=full, local=local, start=group.rank * local)
        empty = torch.empty(local, dtype=torch.float32, device=context.device)
        self.weight = mark_axes(nn.Parameter(empty, requires_grad=False), output=0, input=None)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a checkpoint tensor (see WeightHolder)."""
        if leaf != "weight":
            return None
        return place_parts(leaf, self.weight, (self.part,), part, None)

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece."""
        return {self.part.name}
