"""JointLinear: matrices fused along the output, several of which lie in one checkpoint tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import named_activation
from dovetail.layers.adapters import in_use
from dovetail.layers.linear import Linear
from dovetail.layers.placement import (
    Part,
    Placement,
    Rows,
    held_parts,
    is_per_part,
    place_rows,
)

Joint = Mapping[str, int]
"""What a checkpoint tensor holds: as many rows of each part as said, in turn, until it has all."""


def place_joint(layer: Linear, leaf: str, joint: Joint) -> list[Placement] | None:
    """Return where a tensor of several parts goes in a layer, None where it has no place."""
    parameter = layer._parameters.get(leaf)
    if parameter is None:
        return None
    if not set(joint) <= {part.name for part in held_parts(parameter, layer.parts)}:
        return None
    if is_per_part(parameter):  # one number for all is one for each
        apart = (Linear.place(layer, leaf, name) or [] for name in joint)
        return [placement for placements in apart for placement in placements]
    rows = list(_joint_rows(layer.parts, joint))
    return place_rows(leaf, parameter, sum(layer.spec.out_sizes), rows, layer._input_cut())


def _joint_rows(parts: tuple[Part, ...], joint: Joint) -> Iterator[Rows]:
    """Yield where this rank's rows of the joined parts lie in their tensor."""
    turn, offset = sum(joint.values()), 0
    full = sum(part.full for part in parts if part.name in joint)
    before = dict(zip(joint, accumulate(joint.values(), initial=0), strict=False))
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


class JointLinear(Linear):
    """Several column-parallel matrices in one. `joints` says which parts a checkpoint tensor holds
    that is called so; the others are single parts."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        parts: tuple[Part, ...],
        *,
        joints: Mapping[str, Joint],
        bias: bool = False,
    ) -> None:
        super().__init__(context, name, in_size, parts, bias=bias)
        self.joints = joints

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where the checkpoint tensor goes (see WeightHolder)."""
        joint = None if part is None else self.joints.get(part)
        if joint is not None:
            return place_joint(self, leaf, joint)
        return super().place(leaf, part)


class ActivatedJointLinear(JointLinear):
    """Several column-parallel matrices in one that end in an activation."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        parts: tuple[Part, ...],
        *,
        joints: Mapping[str, Joint],
        act: str,
    ) -> None:
        super().__init__(context, name, in_size, parts, joints=joints)
        self.activation = named_activation(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return act(x W^T) for this rank's outputs. Shapes: x [T, I] -> [T, O]"""
        if (adapters := in_use(self.adapters)) is not None:
            return adapters.activated(self, x, self.bias, self.activation)
        return self.method.apply_activated(self, x, self.bias, self.activation)
