"""Collectives over a Group: sums and gathers that are the identity for a group of size 1.

Knows nothing of layers or devices; torch.distributed carries the tensors.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dovetail.parallel.groups import Group


def all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum of x over the ranks. Mutates: x"""
    if group.size > 1:
        assert group.handle is not None, "the ranks have not joined"
        dist.all_reduce(x, group=group.handle)
    return x


def all_gather(x: torch.Tensor, group: Group, axis: int = -1) -> torch.Tensor:
    """Return the ranks' x joined along `axis` in rank order."""
    if group.size == 1:
        return x
    assert group.handle is not None, "the ranks have not joined"
    pieces = [torch.empty_like(x) for _ in range(group.size)]
    dist.all_gather(pieces, x.contiguous(), group=group.handle)
    return torch.cat(pieces, dim=axis)
