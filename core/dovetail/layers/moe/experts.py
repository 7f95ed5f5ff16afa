"""Experts: the expert matrices of one MoE layer, and the weighted outputs of each token's experts.

On a GPU one fused kernel does it all without a host sync; so does a kernel of the native CPU
library. Otherwise, and for matrices of mixed formats, tokens are sorted by expert and every expert
multiplies its own tokens once. Ranks hold a part of F of every expert, or whole experts of their
own. Either way each has all tokens of its engine, and their outputs are summed. Engines that share
experts exchange tokens. Shape letters: X experts, H of them on this rank, A picked per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.quantization import Gate, StoredTensor
from dovetail.layers.activation import gate, no_gate
from dovetail.layers.adapters.experts import ExpertAdapters, ExpertMatrix
from dovetail.layers.context import step_adapters
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import even_part, linear_spec
from dovetail.layers.linear.alternating import alternating
from dovetail.layers.linear.placement import (
    Part,
    Placement,
    WeightHolder,
    behind_experts,
    held_parts,
    parameter_of,
    place_parts,
    stored_parameter,
)
from dovetail.layers.moe.block_sum import plus_rest
from dovetail.layers.moe.slots import ExpertSlots
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.opaque import CompilerBoundary
from dovetail.parallel.groups import ALONE, expert_group, tensor_group
from dovetail_kernels import moe
from dovetail_kernels.gemm.gpu import GpuPacked
from dovetail_kernels.gemm.matrix import Matrix, multiply_groups, stacked
from dovetail_kernels.gemm.stacked import stack_floats
from dovetail_kernels.moe.native import Moe, packed_experts


def help_others(experts: Sequence[Experts], model: ModelSpec, device: torch.device) -> None:
    """In a step without tokens, compute what engines that share experts with this one need."""
    dtype = dtype_of(model.dtype)
    for layer in experts:
        layer.help_others(torch.zeros(0, layer.size, dtype=dtype, device=device))


class Experts(WeightHolder):
    """The gate, up and down matrices of this rank's experts. `slots` has their current numbers,
    None: all. `loaded` are the experts whose matrices are read from the checkpoint.

    Shapes: gate_up_proj [H, 2F, E], down_proj [H, E, F], F of this rank. A checkpoint may hold them
    per expert ("3.gate_proj.weight" under this layer) or whole ("gate_up_proj"). After loading they
    are replaced by the quantization method's matrices. `act` is the name of an activation, or a
    gate of both halves. `alternates`: the rows of a whole gate_up_proj are gate, up, gate, up.
    `bias`: each matrix has one, gate_up_proj_bias [H, 2F], down_proj_bias [H, E]. Without a gate
    (`is_gated`) the first matrix is up_proj [H, F], and `act` a name.
    """

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        num_experts: int,
        size: int,
        inner: int,
        act: str | Gate,
        alternates: bool = False,
        bias: bool = False,
        weighs_inputs: bool = False,
        is_gated: bool = True,
    ) -> None:
        super().__init__()
        group = tensor_group(context.rank)
        self.name = name
        self.num_experts = num_experts
        self.slots: ExpertSlots | None = None
        self.loaded = tuple(range(num_experts))
        self.num_picked: int | None = None
        if context.expert_placement and expert_group(context.rank).size > 1:
            self.slots = ExpertSlots(context, num_experts)
            self.loaded = self.slots.own
            group = ALONE  # each expert is whole
        self.group = group
        self.is_gated, self.size = is_gated, size
        self.first = "gate_up_proj" if is_gated else "up_proj"
        self.gate = act if isinstance(act, Gate) else gate(act) if is_gated else no_gate(act)
        self.alternates, self.has_bias = alternates, bias
        self.weighs_inputs = weighs_inputs
        halves = ("gate", "up") if is_gated else ("up",)
        self.gate_up = tuple(even_part(n, inner, group, f"{name}.{n}") for n in halves)
        self.down = (Part(name="down", full=size, local=size, start=0),)
        self.input = (group.rank * inner // group.size, inner // group.size, inner)
        local = self.input[1]
        self._gates_in_product = bool(self.gate.name) and not bias
        self._kernel_gate = self.gate.of_experts or self.gate.name
        self._runs_natively = bool(self._kernel_gate) and runs_natively(moe.OP, context)
        self._kernel = fused_kernel(moe.OP, context) if self._kernel_gate else None
        has_kernel = self._runs_natively or self._kernel is not None
        is_packed_gated = is_gated and (self._gates_in_product or has_kernel)
        self.specs = {
            self.first: linear_spec(
                context,
                f"{name}.{self.first}",
                size,
                (local,) * len(halves),
                is_gated=is_packed_gated,
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
        self._native: Moe | None = None
        self._opaque = CompilerBoundary(self._multiply_picked)
        self.adapters: ExpertAdapters | None = None

    def matrix_of(self, leaf: str) -> ExpertMatrix:
        """Return how one of the two matrices of each expert is sharded."""
        is_down, spec = leaf == "down_proj", self.specs[leaf]
        full = self.input[2] if is_down else spec.in_size
        return ExpertMatrix(
            parts=self.down if is_down else self.gate_up,
            spec=spec,
            group=self.group,
            full_in_size=full,
            is_input_split=is_down and self.group.size > 1,
        )

    @property
    def takes_adapters(self) -> bool:
        """Return whether each expert's matrices can be multiplied separately, and all are here."""
        apart = all(leaf in self._matrices or leaf in self._parameters for leaf in self.specs)
        return apart and self.slots is None

    def halves(self, leaf: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Return x times one matrix of one expert plus its bias; for a gated one both halves,
        before the gate.

        Shapes: x [T, I] -> [T, O]
        """
        bias = self.get_parameter(f"{leaf}_bias")[expert] if self.has_bias else 0
        if leaf in self._matrices:
            return self._matrices[leaf][expert].halves(x) + bias
        return F.linear(x, self.get_parameter(leaf)[expert]) + bias

    def _register(self, leaf: str) -> None:
        """Create the empty parameters of one of the two matrices, for all experts held here."""
        spec = self.specs[leaf]
        bias = StoredTensor(name="bias", shape=(spec.out_size,), dtype=spec.dtype, output_axis=0)
        tensors = self.methods[leaf].stored(spec)
        for stored in (*tensors, bias) if self.has_bias else tensors:
            name = leaf if stored.name == "weight" else f"{leaf}_{stored.name}"
            self._stored[name] = (leaf, stored.name)
            parameter = stored_parameter(stored, spec, experts=len(self.loaded))
            self.register_parameter(name, parameter)

    def finish(self) -> None:
        """Pass every expert's matrices to their quantization method. Mutates: self"""
        for leaf, spec in self.specs.items():
            names = {word: name for name, (own, word) in self._stored.items() if own == leaf}
            names.pop("bias", None)
            data = {word: self.get_parameter(name).data for word, name in names.items()}
            method = self.methods[leaf]
            converted = [
                method.matrix({word: values[slot] for word, values in data.items()}, spec)
                for slot in range(len(self.loaded))
            ]
            usable = [m for m in converted if m is not None]
            if not usable:
                continue
            self._matrices[leaf] = usable
            for name in names.values():
                delattr(self, name)
        if self.has_bias and self.group.rank > 0:  # only one rank adds the unsharded bias
            self.get_parameter("down_proj_bias").data.zero_()
        self._fuse()
        self._join()
        for leaf, matrices in self._matrices.items():
            for slot, matrix in enumerate(matrices):
                for name, tensor in matrix.tensors().items():
                    self.register_buffer(f"{leaf}_{slot}_{name}", tensor, persistent=False)

    def _fuse(self) -> None:
        """Stack each expert's matrices for the fused kernel, unquantized ones in place. If some
        cannot be stacked, the kernel is not used. Mutates: self"""
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

    def _join(self) -> None:
        """Collect the experts' packed matrices for the native kernel, if all have the same packing.
        Mutates: self"""
        if not self._runs_natively or len(self._matrices) < len(self.specs):
            return
        gate_up, down = (
            packed_experts(
                [m.packed for m in self._matrices[leaf]],
                self.get_parameter(f"{leaf}_bias").data if self.has_bias else None,
            )
            for leaf in self.specs
        )
        if gate_up is not None and down is not None:
            self._native = Moe(
                gate_up,
                down,
                self._kernel_gate,
                limit=self.gate.limit,
                weighs_inputs=self.weighs_inputs,
                is_gated=self.is_gated,
            )

    @property
    def weighs_natively(self) -> bool:
        """Return whether `forward` multiplies the experts' inputs by their weights itself, for
        models that weigh inputs (see RoutingRule). Otherwise the caller does, and passes weights of
        one."""
        is_alone = self.slots is None and self.adapters is None
        return self.weighs_inputs and self._native is not None and is_alone

    def forward(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        residual: torch.Tensor | None = None,
        shared: torch.Tensor | None = None,
        shared_scores: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the weighted sum of the picked experts' outputs (partial over ranks), plus a
        residual, plus a shared expert's output times the sigmoid of its scores.

        Shapes: x, residual and shared [T, E], weights and experts [T, A], shared_scores [T, 1]
        -> [T, E]
        """
        more = residual, shared, shared_scores
        step = None if self.adapters is None else step_adapters()
        if self.adapters is None or step is None or step.is_low_rank:
            return self._opaque(x, weights, experts, *more, size=x.shape[1])
        out = self._opaque(x, weights, experts, None, None, None, size=x.shape[1])
        return plus_rest(self.adapters.changed(self, x, weights, experts, step.slots, out), *more)

    def _multiply_picked(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        *more: torch.Tensor | None,
    ) -> torch.Tensor:
        self.num_picked = experts.shape[1]
        if self.slots is None:
            return self._multiply_slots(x, weights, experts, *more)
        places = self.slots(experts)
        if self.slots.column.size == 1:
            return self._multiply_slots(x, weights, places, *more)
        assert self.slots.exchange is not None, "the engines have not joined"
        own = self.slots.exchange.exchange(
            x, weights, places, len(self.loaded), self._multiply_slots
        )
        return plus_rest(own, *more)

    def help_others(self, x: torch.Tensor) -> None:
        """Take part in the other engines' exchange, without own tokens. Shapes: x [0, E]"""
        if self.slots is None or self.slots.column.size == 1:
            return
        assert self.num_picked is not None, "a rank helps others once it has run a step itself"
        weights = x.new_zeros((0, self.num_picked), dtype=torch.float32)
        self._multiply_picked(x, weights, torch.zeros_like(weights, dtype=torch.int64))

    def _multiply_slots(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        *more: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the weighted sums of the outputs of the experts in these slots; slot -1 means not
        here. Shapes: as `forward`"""
        if self._native is not None and len(x):
            return self._native(x, weights.contiguous(), experts.contiguous(), *more)
        return plus_rest(self._sums(x, weights, experts), *more)

    def _sums(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the same as `_multiply_slots`, without the native kernel."""
        if not len(x):
            return torch.zeros_like(x)
        if self._kernel is not None:
            first, second = self._packed[self.first], self._packed["down_proj"]
            picks = (weights, experts, self._kernel_gate, self.is_gated)
            return self._kernel(x, first, second, *picks, **self._beside())
        picked = experts.flatten()
        absent, *counts = torch.bincount(picked + 1, minlength=len(self.loaded) + 1).tolist()
        order = picked.argsort(stable=True)[absent:]
        if not len(order):
            return torch.zeros_like(x)
        tokens = order // experts.shape[1]
        inner = self._multiply(self.first, x[tokens], counts)
        outputs = self._multiply("down_proj", inner, counts)
        outputs = outputs * weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, outputs)

    def _beside(self) -> dict[str, Any]:
        """Return the fused kernel's extra arguments: biases, and the gate's limit."""
        own = tuple(self.get_parameter(f"{leaf}_bias") for leaf in self.specs if self.has_bias)
        biases = own or None
        return {"biases": biases, "limit": self.gate.limit}

    def _multiply(self, leaf: str, x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return consecutive groups of rows, each times its expert's matrix plus its bias, gated if
        the matrix is.

        Shapes: x [sum of counts, I] -> [sum of counts, O or F]
        """
        matrices = self._matrices.get(leaf)
        is_packed_gated = self.specs[leaf].is_gated and matrices is not None
        if matrices is None:
            weights = self.get_parameter(leaf)
            parts = zip(x.split(counts), weights, strict=True)
            out = torch.cat([F.linear(part, weight) for part, weight in parts if len(part)])
        elif is_packed_gated and not self._gates_in_product:
            pairs = zip(matrices, x.split(counts), strict=True)
            out = torch.cat([matrix.halves(part) for matrix, part in pairs if len(part)])
        else:
            name = self.gate.name if is_packed_gated else "none"
            out = multiply_groups(matrices, x, counts, name)
        if self.has_bias:
            times = torch.tensor(counts, device=x.device)
            out += self.get_parameter(f"{leaf}_bias").repeat_interleave(times, dim=0)
        is_gated = is_packed_gated and self._gates_in_product
        return self.gate.joined(out) if leaf == self.first and not is_gated else out

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the placements of "N.gate_up_proj.weight" with a part, or of a whole parameter."""
        words = leaf.split(".")
        if len(words) == 1 and part is None and words[0] in self._stored:
            return [
                placement
                for slot in range(len(self.loaded))
                for placement in self._place(words[0], slot, None, is_whole=True)
            ]
        if len(words) != 3 or not words[0].isdecimal() or int(words[0]) >= self.num_experts:
            return None
        name = words[1] if words[2] == "weight" else f"{words[1]}_{words[2]}"
        parts = self.down if words[1] == "down_proj" else self.gate_up
        apart = parameter_of(self._parameters, f"{words[1]}_{words[2]}", part, parts)
        name = apart if apart in self._stored else name
        if name not in self._stored:
            return None
        slots = [slot for slot, expert in enumerate(self.loaded) if expert == int(words[0])]
        placed = [self._place(name, slot, part, is_whole=False) for slot in slots]
        return list(chain(*placed)) if all(placed) else None

    def _place(
        self, name: str, slot: int, wanted: str | None, *, is_whole: bool
    ) -> list[Placement]:
        """Return the placements of one slot's tensor, cut out of all experts' if `is_whole`."""
        parameter = self.get_parameter(name)
        own = nn.Parameter(parameter.data[slot], requires_grad=False)
        vars(own).update(vars(parameter))
        is_down = self._stored[name][0] == "down_proj"
        parts = self.down if is_down else self.gate_up
        placements = place_parts(name, own, parts, wanted, self.input if is_down else None) or []
        if is_whole and self.alternates and not is_down:
            placements = alternating(placements, own, sum(part.full for part in parts))
        return [
            replace(
                placement,
                piece=f"{slot}.{placement.piece}",
                target=placement.target.unsqueeze(0) if is_whole else placement.target,
                cuts=behind_experts(placement.cuts, self.loaded[slot], self.num_experts)
                if is_whole
                else placement.cuts,
            )
            for placement in placements
        ]

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece per slot and matrix."""
        parts = self.down if self._stored[leaf][0] == "down_proj" else self.gate_up
        stored = held_parts(self.get_parameter(leaf), parts)
        return {f"{slot}.{p.name}" for slot in range(len(self.loaded)) for p in stored}

    def slot_tensors(self, slot: int) -> list[torch.Tensor]:
        """Return all tensors of the expert in a slot, as views. After loading."""
        return [tensor for _, tensor in self._slot_items(slot)]

    def slot_layouts(self) -> set[str]:
        """Return texts that are equal for slots whose experts can be exchanged."""
        return {self._layout_of(slot) for slot in range(len(self.loaded))}

    def _slot_items(self, slot: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names and tensors of a slot, without a stack's shared table."""
        for leaf in self.specs:
            if leaf in self._matrices:
                tensors = self._matrices[leaf][slot].tensors()
            elif leaf in self._packed:
                stack = self._packed[leaf].tensors()
                tensors = {name: t[slot] for name, t in stack.items() if name != "table"}
            else:
                tensors = {"weight": self.get_parameter(leaf).data[slot]}
            if self.has_bias:
                tensors = {**tensors, "bias": self.get_parameter(f"{leaf}_bias").data[slot]}
            yield from ((f"{leaf}.{name}", tensors[name]) for name in sorted(tensors))

    def _layout_of(self, slot: int) -> str:
        """Return a text that describes a slot's tensors and its layout settings."""
        descriptions = [f"{name} {list(t.shape)} {t.dtype}" for name, t in self._slot_items(slot)]
        descriptions += [f"{leaf} {own[slot].layout}" for leaf, own in self._matrices.items()]
        descriptions += [f"{leaf} {stack.layout}" for leaf, stack in self._packed.items()]
        return "; ".join(descriptions)
