"""Matrix: a linear layer's weight, ready to be multiplied by the best available implementation.

If the given weight gets packed, it is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dovetail_kernels.cpu.library import library
from dovetail_kernels.cpu.recipe import BFLOAT16_ISAS
from dovetail_kernels.gemm import OP, native
from dovetail_kernels.gemm.gpu import GpuPacked, is_packed, pack
from dovetail_kernels.gemm.native import Packed, PackedFacts
from dovetail_kernels.gemm.panels import moved
from dovetail_kernels.gemm.reference import reference
from dovetail_kernels.gemm.stacked import stack
from dovetail_kernels.gemm.weight import FLOATS, Weight, spelled_out
from dovetail_kernels.gpu import TRITON


def runs_natively(device: str, dtype: torch.dtype) -> bool:
    """Return whether activations of a dtype on a device are multiplied natively."""
    return OP.runs("native", torch.device(device).type, dtype)


def runs_on_gpu(device: str, dtype: torch.dtype) -> bool:
    """Return whether activations of a dtype on a device are multiplied by Triton kernels: on a GPU,
    or interpreted if there is no native library."""
    kind = torch.device(device).type
    return not OP.runs("native", kind, dtype) and OP.runs(TRITON, kind, dtype)


def multiplies_pairs(*, in_groups: bool = False) -> bool:
    """Return whether native products of bfloat16 pairs are faster than float32's here.

    `in_groups`: of weights whose values have scales.
    """
    native = library()
    return native is not None and native.isa in BFLOAT16_ISAS[: 1 if in_groups else None]


def stored_format(values: torch.Tensor) -> str:
    """Return the format of a full-precision weight: its own type, with float activations."""
    return next(name for name, dtype in FLOATS.items() if dtype == values.dtype)


class Matrix:
    """A weight ready to be multiplied: packed for the native library or for the GPU if they run,
    unchanged otherwise. Plain floats are torch's to multiply on a GPU.

    `is_gated`: the first half of its outputs is the gate of the second (see the op).
    `rounds_activations`: products may round activations to bfloat16 if this CPU multiplies such
    pairs faster; they do so for weights that are exact in it or use a table.
    """

    def __init__(
        self,
        weight: Weight,
        *,
        device: str,
        dtype: torch.dtype,
        is_gated: bool = False,
        rounds_activations: bool = False,
    ) -> None:
        is_native, on_gpu = runs_natively(device, dtype), runs_on_gpu(device, dtype)
        self._order = None if weight.order is None else weight.order.to(device)
        weight = replace(weight if is_native else spelled_out(weight, dtype), order=None)
        self._packed: Packed | GpuPacked | None = None
        if is_native:
            rounds = rounds_activations and multiplies_pairs(in_groups=True)
            self._packed = Packed(weight, is_gated=is_gated, rounds_activations=rounds)
        elif on_gpu and is_packed(weight.format):
            self._packed = pack(
                weight,
                device=device,
                is_gated=is_gated,
                has_float8_activations=weight.has_float8_activations,
            )
        elif on_gpu and weight.scales is None:
            weight = replace(weight, values=weight.values.to(device, dtype))
        else:
            weight = moved(weight, device)
        self._weight = None if self._packed is not None else weight
        self._is_gated = is_gated

    @classmethod
    def restored(
        cls, facts: PackedFacts, tensors: Mapping[str, torch.Tensor], order: torch.Tensor | None
    ) -> Matrix:
        """Return a matrix by its packed weight (see Packed.restored) and its inputs' order."""
        matrix = cls.__new__(cls)
        matrix._order, matrix._weight = order, None
        matrix._packed, matrix._is_gated = Packed.restored(facts, tensors), facts.is_gated
        return matrix

    @property
    def order(self) -> torch.Tensor | None:
        """Return the order in which inputs are multiplied, None for their own. Shapes: [K] int64"""
        return self._order

    @property
    def native(self) -> Packed | None:
        """Return the weight that the native library multiplies, in whatever order of inputs; None
        for another."""
        return self._packed if isinstance(self._packed, Packed) else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the matrix keeps, by name."""
        if self._packed is not None:
            return self._packed.tensors()
        assert self._weight is not None
        tensors = {
            "values": self._weight.values,
            "scales": self._weight.scales,
            "zeros": self._weight.zeros,
            "offsets": self._weight.offsets,
            "steps": self._weight.steps,
            "offset_steps": self._weight.offset_steps,
            "table": self._weight.table,
            "outer": self._weight.outer,
        }
        return {name: t for name, t in tensors.items() if t is not None}

    def multiply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        """Return act(x W^T + bias) + residual, or act(gate) * up.

        Shapes: x [M, K], bias [outputs of the weight as given] or one for each row, contiguous,
        residual [M, N] -> [M, N]
        """
        if self._order is not None:
            x = x.index_select(1, self._order)
        if self._packed is not None:
            return self._packed(x, bias, residual, activation)
        assert self._weight is not None
        return reference(x, self._weight, bias, residual, activation, self._is_gated)

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T, of a gated matrix both halves side by side. Shapes: x [M, K] -> [M, N]"""
        if not self._is_gated:
            return self.multiply(x)
        if self._order is not None:
            x = x.index_select(1, self._order)
        if self._packed is not None:
            return self._packed.halves(x)
        assert self._weight is not None
        return reference(x, self._weight)

    @property
    def layout(self) -> str:
        """Return a text of the properties outside `tensors`: matrices with equal texts, shapes and
        types can be copied over each other. There is none for a matrix with reordered inputs."""
        if self._order is not None:
            return f"inputs in the order {self._order.tolist()}"
        if self._packed is not None:
            return self._packed.layout
        assert self._weight is not None
        return f"{self._weight.format} in groups of {self._weight.group}"

    @property
    def packed(self) -> Packed | GpuPacked | None:
        """Return the packed form, or None if there is none that takes inputs in their order."""
        return self._packed if self._order is None else None

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows of the matrix that is meant. Shapes: index [M] int64 -> [M, K] float32"""
        found = self._rows(index)
        if self._order is None:
            return found
        ordered = torch.empty_like(found)
        ordered[:, self._order] = found
        return ordered

    def part_rows(self, index: torch.Tensor, first: int) -> torch.Tensor | None:
        """Return rows of a matrix whose first row has the number `first`, zeros for rows it lacks;
        None if no kernel does that. Shapes: index [M] int64 -> [M, K] float32"""
        packed = self._packed
        if self._order is not None or not isinstance(packed, Packed):
            return None
        return packed.rows(index, first)

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return self._packed.rows(index)
        assert self._weight is not None
        return self._weight.rows(index)


def stacked(matrices: Sequence[Matrix]) -> GpuPacked | None:
    """Return the matrices of several experts as one for a GPU; None if they cannot be stacked."""
    packed = [one for m in matrices if isinstance(one := m.packed, GpuPacked)]
    return stack(packed) if len(packed) == len(matrices) else None


def multiply_groups(
    matrices: Sequence[Matrix], x: torch.Tensor, counts: Sequence[int], activation: str = "none"
) -> torch.Tensor:
    """Return consecutive groups of rows, each times its own matrix (all of one shape): in one call
    if all are packed in one format.

    Shapes: x [sum of counts, K] -> [sum of counts, N]
    """
    packed = [one for m in matrices if isinstance(one := m.packed, Packed)]
    if len(packed) == len(matrices) and len({one.kind for one in packed}) == 1:
        return native.multiply_groups(packed, x, counts, activation)
    parts = zip(matrices, x.split(list(counts)), strict=True)
    return torch.cat([m.multiply(part, activation=activation) for m, part in parts if len(part)])
