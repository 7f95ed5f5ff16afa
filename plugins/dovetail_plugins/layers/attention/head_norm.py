"""Norms of queries and keys other than one RMSNorm per head: over all heads together, or layer
norms. Each takes this rank's heads, concatenated, and is divided over ranks like them.

Source of the idea: Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, 2023.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.placement import (
    Cut,
    Part,
    Placement,
    WeightHolder,
    mark_axes,
    place_parts,
)
from dovetail.layers.norm import LayerNorm, rms_kernel
from dovetail.layers.opaque import is_traced
from dovetail.layers.repeated import of_tensors
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group


def _empty(context: BuildContext, *shape: int) -> nn.Parameter:
    empty = torch.empty(shape, dtype=dtype_of(context.model.dtype), device=context.device)
    return mark_axes(nn.Parameter(empty, requires_grad=False), output=0, input=None)


class WholeRMSNorm(WeightHolder):
    """One RMSNorm over all heads of all ranks. `part` says which features are this rank's."""

    def __init__(self, context: BuildContext, part: Part, head_size: int, *, eps: float) -> None:
        super().__init__()
        self.eps, self.part = eps, part
        self.group = tensor_group(context.rank)
        self.weight = _empty(context, part.local)
        self._kernel = rms_kernel(context, part.local, eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, H*D of this rank] -> the same"""
        if self.group.size > 1:
            return self._over_ranks(x)
        if self._kernel is not None and not is_traced():
            return self._kernel(x, self._parameters["weight"])
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def _over_ranks(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm by the mean of all ranks' squares: each has as many features, and heads
        that several ranks hold count as often as the others."""
        wide = x.float()
        squares = all_reduce(wide.square().mean(dim=-1, keepdim=True), self.group)
        scale = torch.rsqrt(squares / self.group.size + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a checkpoint tensor (see WeightHolder)."""
        if leaf != "weight":
            return None
        return place_parts(leaf, self.weight, (self.part,), part, None)

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece: the features of this rank."""
        return {self.part.name}


class LayerNormOfHeads(LayerNorm):
    """One layer norm for each head, of the same weight and bias for all heads."""

    def __init__(self, context: BuildContext, part: Part, head_size: int, *, eps: float) -> None:
        super().__init__(context, head_size, eps=eps)
        self._head_size = head_size

    def forward(self, x: torch.Tensor, *, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, delta [T, H*D] -> [T, H*D]"""
        heads = x.unflatten(-1, (-1, self._head_size))
        return super().forward(heads, delta=delta).flatten(-2)


class LayerNormPerHead(WeightHolder):
    """A layer norm for each head with its own weight, without bias. Checkpoints have one
    tensor [H, D], or "norms.N.weight" [D] for each head. Shapes: weight [H of this rank, D]"""

    def __init__(self, context: BuildContext, part: Part, head_size: int, *, eps: float) -> None:
        super().__init__()
        self.eps, self._head_size = eps, head_size
        self._heads = range(part.start // head_size, (part.start + part.local) // head_size)
        self._num_heads = part.full // head_size
        self.weight = _empty(context, len(self._heads), head_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, H*D of this rank] -> the same"""
        return of_tensors(self._normed, x)[0]

    def _normed(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        heads = x.unflatten(-1, (-1, self._head_size)).float()
        normed = F.layer_norm(heads, (self._head_size,), eps=self.eps)
        return ((normed * self.weight.float()).to(x.dtype).flatten(-2),)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a checkpoint tensor (see WeightHolder)."""
        words = leaf.split(".")
        if leaf == "weight":
            return [self._placed(head, is_alone=False) for head in self._heads]
        if len(words) != 3 or (words[0], words[2]) != ("norms", "weight"):
            return None
        return [self._placed(head, is_alone=True) for head in self._heads if words[1] == str(head)]

    def _placed(self, head: int, *, is_alone: bool) -> Placement:
        row = head - self._heads.start
        target = self.weight.data[row] if is_alone else self.weight.data[row : row + 1]
        cut = Cut(axis=0, start=head, size=1, full=self._num_heads)
        cuts = () if is_alone else (cut,)
        return Placement(name="weight", piece=str(head), target=target, cuts=cuts)

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece for each head of this rank."""
        return {str(head) for head in self._heads}
