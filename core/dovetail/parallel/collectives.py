"""Collectives over a Group: sums and gathers; in a group of size 1 they return their input.

Knows nothing of layers or devices; the group's communicator transfers the tensors.
"""

from __future__ import annotations

import torch

from dovetail.parallel.groups import Group


def all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum of x over all ranks. Mutates: x"""
    return x if group.size == 1 else group.joined().all_reduce(x)


def all_gather(x: torch.Tensor, group: Group, axis: int = -1) -> torch.Tensor:
    """Return the x of all ranks concatenated along `axis` in rank order."""
    if group.size == 1:
        return x
    pieces = group.joined().all_gather(x)
    axis %= x.dim()
    if axis == 0:
        return pieces.flatten(0, 1)
    return pieces.movedim(0, axis).flatten(axis, axis + 1)


def exchange(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return what each rank sent to this one, in rank order (all-to-all); x[i] goes to rank i.

    Shapes: x [size, T, ..] -> [size, T, ..]
    """
    if group.size == 1:
        return x
    return group.joined().all_to_all(x.flatten(0, 1)).unflatten(0, (group.size, -1))
