"""Joints: checkpoint tensors that hold rows of several parts of a fused matrix, in turn.

A joint of {"q": 6, "k": 2, "v": 2} begins with six rows of q, two of k and two of v, and goes on
with the next ones of each until it has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import torch

from dovetail.layers.placement import Part, Rows

Joint = Mapping[str, int]
"""How many rows of each part a turn has, in the order in which they lie."""


def held_rows(parts: Sequence[Part], joint: Joint) -> Iterator[Rows]:
    """Yield where this rank's rows of the parts lie in the tensor of a joint."""
    turn, before = sum(joint.values()), _before(joint)
    full = sum(part.full for part in parts if part.name in joint)
    offset = 0
    for part in parts:
        size = joint.get(part.name, 0)
        end = part.start + part.held
        row = part.start
        while size and row < end:
            number, within = divmod(row, size)
            count = min(size - within, end - row)
            yield Rows(
                piece=part.name,
                start=number * turn + before[part.name] + within,
                size=count,
                full=full,
                offset=offset + row - part.start,
            )
            row += count
        offset += part.local


def outputs_in(parts: Sequence[Part], joint: Joint) -> dict[str, torch.Tensor]:
    """Return where all outputs of each part lie in the tensor of a joint, on all ranks.

    Shapes: [outputs of a part] int64 each
    """
    turn, before = sum(joint.values()), _before(joint)
    found = {}
    for part in parts:
        if part.name in joint:
            size, outputs = joint[part.name], torch.arange(part.full)
            found[part.name] = outputs // size * turn + before[part.name] + outputs % size
    return found


def _before(joint: Joint) -> dict[str, int]:
    """Return the row of a turn at which each part begins."""
    return dict(zip(joint, accumulate(joint.values(), initial=0), strict=False))
