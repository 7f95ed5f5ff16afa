"""Mixture of experts: a router that picks A of X experts per token, and the experts' matrices.

On a GPU one fused kernel does it all, without a word to the host. Elsewhere, and for matrices that
cannot lie behind each other there, tokens are sorted by expert and every expert multiplies its own
tokens once. Ranks hold a part of F of every expert, or all of F of experts of their own; either
way each has all tokens, and their outputs are summed. Shape letters: X experts, of which this rank
holds H, A picked per token.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import gate, gated
from dovetail.layers.linear import ReplicatedLinear, even_part, linear_spec
from dovetail.layers.native import fused_kernel
from dovetail.layers.opaque import Opaque
from dovetail.layers.placement import (
    Cut,
    Part,
    Placement,
    WeightHolder,
    held_parts,
    place_parts,
    stored_parameter,
)
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.experts import held_experts
from dovetail.parallel.groups import ALONE, tensor_group
from dovetail_kernels import moe
from dovetail_kernels.gemm.gpu import GpuPacked, stack_floats
from dovetail_kernels.gemm.matrix import Matrix, multiply_groups, stacked


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
    """The gate, up and down matrices of the experts that this rank holds, those of `held`.

    Shapes: gate_up_proj [H, 2F, E], down_proj [H, E, F], F of this rank. A checkpoint may hold
    them per expert ("3.gate_proj.weight" under this layer) or whole ("gate_up_proj"). Once loaded
    they become what the quantization method multiplies, and the parameters go.
    """

    slots: torch.Tensor | None

    def __init__(
        self, context: BuildContext, name: str, *, num_experts: int, size: int, inner: int, act: str
    ) -> None:
        super().__init__()
        group = tensor_group(context.rank)
        self.name = name
        self.num_experts = num_experts
        self.held = tuple(range(num_experts))
        if context.expert_placement and group.size > 1:
            self.held = held_experts(context.expert_placement, num_experts, group)
            group = ALONE  # each of them is whole
        self.register_buffer("slots", self._held_slots(context.device), persistent=False)
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
            "down_proj": linear_spec(
                context, f"{name}.down_proj", local, (size,), full_in_size=inner
            ),
        }
        self.methods = {leaf: context.quant.linear(spec) for leaf, spec in self.specs.items()}
        self._stored: dict[str, tuple[str, str]] = {}
        for leaf in self.specs:
            self._register(leaf)
        self._matrices: dict[str, list[Matrix]] = {}
        self._packed: dict[str, GpuPacked] = {}
        self._kernel = fused_kernel(moe.OP, context) if known else None
        self._opaque = Opaque(self._multiply_picked)

    def _held_slots(self, device: str) -> torch.Tensor | None:
        """Return where each expert's matrices lie here, -1 for those of others; None where all lie
        in order. Shapes: [X] int64"""
        if len(self.held) == self.num_experts:
            return None
        slots = [self.held.index(e) if e in self.held else -1 for e in range(self.num_experts)]
        return torch.tensor(slots, device=device)

    def _register(self, leaf: str) -> None:
        """Make the empty parameters of one of the two matrices, those of all held experts."""
        spec = self.specs[leaf]
        for stored in self.methods[leaf].stored(spec):
            name = leaf if stored.name == "weight" else f"{leaf}_{stored.name}"
            self._stored[name] = (leaf, stored.name)
            parameter = stored_parameter(stored, spec, experts=len(self.held))
            self.register_parameter(name, parameter)

    def finish(self) -> None:
        """Give every expert's matrices to their method. Mutates: self"""
        for leaf, spec in self.specs.items():
            names = {word: name for name, (own, word) in self._stored.items() if own == leaf}
            data = {word: self.get_parameter(name).data for word, name in names.items()}
            method = self.methods[leaf]
            made = [
                method.matrix({word: values[slot] for word, values in data.items()}, spec)
                for slot in range(len(self.held))
            ]
            kept = [m for m in made if m is not None]
            if not kept:
                continue
            self._matrices[leaf] = kept
            for name in names.values():
                delattr(self, name)
        self._fuse()
        for leaf, matrices in self._matrices.items():
            for slot, matrix in enumerate(matrices):
                for name, tensor in matrix.tensors().items():
                    self.register_buffer(f"{leaf}_{slot}_{name}", tensor, persistent=False)

    def _fuse(self) -> None:
        """Lay each expert's matrices behind each other for the fused kernel, plain ones where they
        are; where some cannot, there is no such kernel. Mutates: self"""
        if self._kernel is None:
            return
        for leaf, spec in self.specs.items():
            matrices = self._matrices.get(leaf)
            packed = (
                stack_floats(self.get_parameter(leaf).data, is_gated=spec.is_gated)
                if matrices is None
                else stacked(matrices)
            )
            if packed is None:
                self._kernel = None
                self._packed.clear()
                return
            self._packed[leaf] = packed
        for leaf in self._matrices:
            for name, tensor in self._packed[leaf].tensors().items():
                self.register_buffer(f"{leaf}_{name}", tensor, persistent=False)
        self._matrices.clear()

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the picked experts' outputs (partial over ranks).

        Shapes: x [T, E], weights and experts [T, A] -> [T, E]
        """
        return self._opaque(x, weights, experts, size=x.shape[1])

    def _multiply_picked(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        if self.slots is not None:
            experts = self.slots[experts]
        if self._kernel is not None:
            first, second = self._packed["gate_up_proj"], self._packed["down_proj"]
            return self._kernel(x, first, second, weights, experts, self.gate.name)
        picked = experts.flatten()
        absent, *counts = torch.bincount(picked + 1, minlength=len(self.held) + 1).tolist()
        order = picked.argsort(stable=True)[absent:]
        if not len(order):
            return torch.zeros_like(x)
        tokens = order // experts.shape[1]
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
        words = leaf.split(".")
        if len(words) == 1 and part is None and words[0] in self._stored:
            return [
                placement
                for expert in self.held
                for placement in self._place(words[0], expert, None, is_whole=True)
            ]
        if len(words) != 3 or not words[0].isdecimal() or int(words[0]) >= self.num_experts:
            return None
        name = words[1] if words[2] == "weight" else f"{words[1]}_{words[2]}"
        if name not in self._stored:
            return None
        if int(words[0]) not in self.held:
            return []
        return self._place(name, int(words[0]), part, is_whole=False) or None

    def _place(
        self, name: str, expert: int, wanted: str | None, *, is_whole: bool
    ) -> list[Placement]:
        """Return the placements of one expert's tensor, cut out of all experts' if `is_whole`."""
        parameter = self.get_parameter(name)
        own = nn.Parameter(parameter.data[self.held.index(expert)], requires_grad=False)
        vars(own).update(vars(parameter))
        is_down = self._stored[name][0] == "down_proj"
        parts = self.down if is_down else self.gate_up
        found = place_parts(name, own, parts, wanted, self.input if is_down else None) or []
        return [
            replace(
                placement,
                piece=f"{expert}.{placement.piece}",
                target=placement.target.unsqueeze(0) if is_whole else placement.target,
                cuts=_behind_experts(placement.cuts, expert, self.num_experts)
                if is_whole
                else placement.cuts,
            )
            for placement in found
        ]

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece per held expert and matrix."""
        parts = self.down if self._stored[leaf][0] == "down_proj" else self.gate_up
        held = held_parts(self.get_parameter(leaf), parts)
        return {f"{expert}.{p.name}" for expert in self.held for p in held}


def _behind_experts(cuts: tuple[Cut, ...], expert: int, num_experts: int) -> tuple[Cut, ...]:
    """Return the cuts of one expert's tensor as cuts of all experts' tensors together."""
    moved = (replace(cut, axis=cut.axis + 1) for cut in cuts)
    return (Cut(axis=0, start=expert, size=1, full=num_experts), *moved)


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
