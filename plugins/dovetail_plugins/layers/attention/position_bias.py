"""Biases by relative position: one number per head and distance, added to attention's scores.

`PositionBias.table` is the input of `AttentionBackend.forward_biased`: [H, 2 M - 1] for this rank's
heads. Column M - 1 + d has the bias of a key d after the query (before it if d < 0). M is the
longest served row.
Source: Raffel et al., T5, 2019. A bias linear in the distance needs no table: see
layers/attention/alibi.py.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.placement import Placement, WeightHolder
from dovetail.parallel.groups import tensor_group


class PositionBias(WeightHolder):
    """A table that all layers share."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        group = tensor_group(context.rank)
        heads = group.share(model.num_heads, "attention heads")
        self.heads = slice(group.rank * heads, (group.rank + 1) * heads)
        self.reach = context.max_tokens or model.max_position_tokens
        empty = torch.zeros(heads, 2 * self.reach - 1, device=context.device)
        self.register_buffer("table", empty, persistent=False)
        self.table: torch.Tensor

    def distances(self) -> torch.Tensor:
        """Return the distance of a key after a query for each column, in host memory: logarithms of
        another device may put a distance into the next bucket. Shapes: [2 M - 1]"""
        return torch.arange(1 - self.reach, self.reach)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a checkpoint tensor: whole on every rank (see WeightHolder)."""
        parameter = self._parameters.get(leaf)
        if parameter is None:
            return None
        return [Placement(name=leaf, piece="", target=parameter)]

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece of the weight."""
        return {""}


class BucketBias(PositionBias):
    """Learned biases of buckets of distances: near ones have a bucket each, farther ones share. In
    a causal layer no key after the query is seen, so none has a bucket.

    Shapes: weight [buckets, H of all ranks]
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        num_buckets: int,
        max_distance: int,
        is_causal: bool = False,
    ) -> None:
        super().__init__(context)
        self.max_distance = max_distance
        self.is_causal = is_causal
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(
            num_buckets, context.model.num_heads, dtype=dtype, device=context.device
        )
        self.weight = nn.Parameter(empty, requires_grad=False)

    def finish(self) -> None:
        """Fill the table. Mutates: self"""
        count = len(self.weight)
        if self.is_causal:
            rows = one_side(-self.distances().clamp(max=0), count, self.max_distance)
        else:
            rows = buckets(self.distances(), count, self.max_distance)
        self.table.copy_(self.weight[rows.to(self.weight.device)].float().T[self.heads])


def buckets(distances: torch.Tensor, count: int, max_distance: int) -> torch.Tensor:
    """Return the bucket of each distance: half of them for keys after the query; of each half, half
    for one distance each, the others for ranges that grow up to max_distance and all beyond.

    Source: Raffel et al. 2019, `_relative_position_bucket` of mesh_tensorflow
    """
    half = count // 2
    after = (distances > 0).long() * half
    return after + one_side(distances.abs(), half, max_distance)


def one_side(far: torch.Tensor, count: int, max_distance: int) -> torch.Tensor:
    """Return the buckets of distances that are not negative."""
    exact = count // 2
    growth = torch.log(far.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    shared = (exact + (growth * (count - exact)).long()).clamp(max=count - 1)
    return torch.where(far < exact, far, shared)
