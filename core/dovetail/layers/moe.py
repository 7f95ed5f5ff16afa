"""Mixture of experts: a router that picks A of X experts per token, and the experts' matrices.

The torch reference: tokens are sorted by expert and every expert multiplies its own tokens once.
Experts are divided over ranks along F. Shape letters: X experts, A picked per token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import gate, gated
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear, even_part, linear_spec
from dovetail.layers.placement import Cut, Part, Placement, WeightHolder, mark_axes
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
from dovetail_kernels.gemm.matrix import Matrix, multiply_groups


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
    them per expert ("3.gate_proj.weight" under this layer) or whole ("gate_up_proj"). Once loaded
    they become what the quantization method multiplies, and the parameters go.
    """

    def __init__(
        self, context: BuildContext, name: str, *, num_experts: int, size: int, inner: int, act: str
    ) -> None:
        super().__init__()
        group = tensor_group(context.rank)
        self.num_experts = num_experts
        self.gate = gate(act)
        self.gate_up = tuple(even_part(n, inner, group, f"{name}.{n}") for n in ("gate", "up"))
        self.down = (Part(name="down", full=size, local=size, start=0),)
        self.input = (group.rank * inner // group.size, inner // group.size, inner)
        local = self.input[1]
        known = bool(self.gate.name)
        self.specs = {
            "gate_up_proj": linear_spec(
                context, f"{name}.gate_up_proj", size, (local, local), is_gated=known
            ),
            "down_proj": linear_spec(context, f"{name}.down_proj", local, (size,)),
        }
        self.methods = {leaf: context.quant.linear(spec) for leaf, spec in self.specs.items()}
        self.gate_up_proj = self._empty("gate_up_proj")
        self.down_proj = self._empty("down_proj")
        self._matrices: dict[str, list[Matrix]] = {}

    def _empty(self, leaf: str) -> nn.Parameter:
        spec = self.specs[leaf]
        empty = torch.empty(
            (self.num_experts, spec.out_size, spec.in_size),
            dtype=dtype_of(self.methods[leaf].loads_as(spec)),
            device=spec.device,
        )
        return mark_axes(nn.Parameter(empty, requires_grad=False), output=1, input=2)

    def finish(self) -> None:
        """Give every expert's matrices to their method. Mutates: self"""
        for leaf, spec in self.specs.items():
            made = [self.methods[leaf].matrix(v, spec) for v in self.get_parameter(leaf).data]
            kept = [m for m in made if m is not None]
            if not kept:
                continue
            self._matrices[leaf] = kept
            delattr(self, leaf)
            for expert, matrix in enumerate(kept):
                for name, tensor in matrix.tensors().items():
                    self.register_buffer(f"{leaf}_{expert}_{name}", tensor, persistent=False)

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
        inner = self._multiply("gate_up_proj", x[tokens], counts)
        outputs = self._multiply("down_proj", inner, counts)
        outputs = outputs * weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, outputs)

    def _multiply(self, leaf: str, x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return consecutive groups of rows, each times its expert's matrix, gated if it is.

        Shapes: x [sum of counts, I] -> [sum of counts, O or F]
        """
        matrices = self._matrices.get(leaf)
        is_gated = self.specs[leaf].is_gated
        if matrices is not None:
            out = multiply_groups(matrices, x, counts, self.gate.name if is_gated else "none")
        else:
            weights = self.get_parameter(leaf)
            parts = zip(x.split(counts), weights, strict=True)
            out = torch.cat([F.linear(part, weight) for part, weight in parts if len(part)])
            is_gated = False
        return gated(self.gate.function, out) if leaf == "gate_up_proj" and not is_gated else out

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

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E], whole on every rank"""
        weights, experts = route(self.gate(x), self.num_picked, renormalizes=self.renormalizes)
        out = all_reduce(self.experts(x, weights, experts), self.group)
        return out if residual is None else residual + out
