"""Joints: checkpoint tensors that interleave rows of several parts of a fused matrix.

A joint of {"q": 6, "k": 2, "v": 2} has six rows of q, two of k and two of v, then the next rows of
each in the same pattern, until all rows are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import torch

from dovetail.layers.linear.placement import Part, Rows

Joint = Mapping[str, int]
"""Rows of each part in one turn, in storage order."""


def held_rows(parts: Sequence[Part], joint: Joint) -> Iterator[Rows]:
    """Yield this rank's rows of the parts within the tensor of a joint."""
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
    """Return the indices of all outputs of each part in the tensor of a joint, over all ranks.

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
    """Return each part's first row within a turn."""
    return dict(zip(joint, accumulate(joint.values(), initial=0), strict=False))
