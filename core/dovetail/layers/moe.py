"""Mixture of experts: a router that picks A of X experts per token, and the experts' matrices.

The torch reference: tokens are sorted by expert and every expert multiplies its own tokens once.
Experts are divided over ranks along F. Shape letters: X experts, A picked per token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import activation, gated
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear, even_part
from dovetail.layers.placement import Cut, Part, Placement, WeightHolder, mark_axes
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group


def route(
    scores: torch.Tensor, num_picked: int, *, renormalizes: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights, expert ids) of the most likely experts of each token.

    Shapes: scores [T, X] -> [T, A] float32, [T, A] int64
    """
    weights, experts = F.softmax(scores.float(), dim=-1).topk(num_picked, dim=-1)
    if renormalizes:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts


class Experts(WeightHolder):
    """All experts' gate, up and down matrices.

    Shapes: gate_up_proj [X, 2F, E], down_proj [X, E, F], F of this rank. A checkpoint may hold
    them per expert ("3.gate_proj.weight" under this layer) or whole ("gate_up_proj").
    """

    def __init__(
        self, context: BuildContext, name: str, *, num_experts: int, size: int, inner: int, act: str
    ) -> None:
        super().__init__()
        group = tensor_group(context.rank)
        self.num_experts = num_experts
        self.act = activation(act)
        self.gate_up = tuple(even_part(n, inner, group, f"{name}.{n}") for n in ("gate", "up"))
        self.down = (Part(name="down", full=size, local=size, start=0),)
        self.input = (group.rank * inner // group.size, inner // group.size, inner)
        self.gate_up_proj = self._empty(context, 2 * self.input[1], size)
        self.down_proj = self._empty(context, size, self.input[1])

    def _empty(self, context: BuildContext, out_size: int, in_size: int) -> nn.Parameter:
        empty = torch.empty(
            (self.num_experts, out_size, in_size),
            dtype=dtype_of(context.model.dtype),
            device=context.device,
        )
        return mark_axes(nn.Parameter(empty, requires_grad=False), output=1, input=2)

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the picked experts' outputs (partial over ranks).

        Shapes: x [T, E], weights and experts [T, A] -> [T, E]
        """
        picked = experts.flatten()
        order = picked.argsort(stable=True)
        tokens = order // experts.shape[1]
        counts = torch.bincount(picked, minlength=self.num_experts).tolist()
        grouped = x[tokens].split(counts)
        outputs = torch.cat([self._one(i, part) for i, part in enumerate(grouped) if len(part)])
        outputs = outputs * weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, outputs)

    def _one(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        inner = gated(self.act, F.linear(x, self.gate_up_proj[expert]))
        return F.linear(inner, self.down_proj[expert])

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where "N.gate_up_proj.weight" with a part, or a whole parameter, goes."""
        words = leaf.removesuffix(".weight").split(".")
        if words[-1] not in ("gate_up_proj", "down_proj"):
            return None
        if len(words) == 1 and part is None:
            return [
                placement
                for expert in range(self.num_experts)
                for placement in self._place(words[0], expert, None, is_whole=True)
            ]
        if len(words) != 2 or not words[0].isdecimal() or int(words[0]) >= self.num_experts:
            return None
        return self._place(words[1], int(words[0]), part, is_whole=False) or None

    def _place(
        self, leaf: str, expert: int, wanted: str | None, *, is_whole: bool
    ) -> list[Placement]:
        """Return the placements of one expert's matrix, cut out of all experts' if `is_whole`."""
        data = self.get_parameter(leaf).data
        parts = self.gate_up if leaf == "gate_up_proj" else self.down
        is_joined = wanted is None
        full = sum(p.full for p in parts)
        placements = []
        offset = base = 0
        for part in parts:
            cuts = [Cut(axis=0, start=expert, size=1, full=self.num_experts)]
            cuts.append(
                Cut(
                    axis=1,
                    start=part.start + (base if is_joined else 0),
                    size=part.local,
                    full=full if is_joined else part.full,
                )
            )
            if leaf == "down_proj":
                start, size, inner = self.input
                cuts.append(Cut(axis=2, start=start, size=size, full=inner))
            target = data[expert : expert + 1, offset : offset + part.local]
            if wanted in (None, part.name):
                placements.append(_placement(leaf, f"{expert}.{part.name}", target, cuts, is_whole))
            offset, base = offset + part.local, base + part.full
        return placements

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece per expert and matrix."""
        parts = self.gate_up if leaf == "gate_up_proj" else self.down
        return {f"{expert}.{p.name}" for expert in range(self.num_experts) for p in parts}


def _placement(
    leaf: str, piece: str, target: torch.Tensor, cuts: list[Cut], is_whole: bool
) -> Placement:
    """Return the placement with or without the axis of experts."""
    if is_whole:
        return Placement(name=leaf, piece=piece, target=target, cuts=tuple(cuts))
    moved = tuple(
        Cut(axis=c.axis - 1, start=c.start, size=c.size, full=c.full) for c in cuts if c.axis > 0
    )
    return Placement(name=leaf, piece=piece, target=target[0], cuts=moved)


class MoE(nn.Module):
    """Router and experts of one block; `name` is the block's path in the checkpoint."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        num_experts: int,
        num_picked: int,
        inner: int,
        act: str,
        renormalizes: bool,
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.num_picked = num_picked
        self.renormalizes = renormalizes
        self.group = tensor_group(context.rank)
        self.gate = ReplicatedLinear(context, f"{name}.gate", size, num_experts)
        self.experts = Experts(
            context, f"{name}.experts", num_experts=num_experts, size=size, inner=inner, act=act
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E], whole on every rank"""
        weights, experts = route(self.gate(x), self.num_picked, renormalizes=self.renormalizes)
        return all_reduce(self.experts(x, weights, experts), self.group)
