"""Matrix: a linear layer's weight as it is multiplied, by the best implementation there is.

Knows no layer and no checkpoint. The weight given is not kept where it gets packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dovetail_kernels.cpu.library import library
from dovetail_kernels.gemm import OP, native
from dovetail_kernels.gemm.native import Packed
from dovetail_kernels.gemm.reference import reference
from dovetail_kernels.gemm.weight import FLOATS, Weight

BFLOAT16_ISA = "avx512bf16"


def runs_natively(device: str, dtype: torch.dtype) -> bool:
    """Return whether activations of a dtype on a device are multiplied natively."""
    return OP.runs("native", torch.device(device).type, dtype)


def stored_format(values: torch.Tensor, *, rounds_activations: bool) -> str:
    """Return the format to multiply a full-precision weight in.

    bfloat16 weights take activations rounded to bfloat16 where that is allowed and the machine has
    instructions for it; every other product has float32 activations.
    """
    name = next(name for name, dtype in FLOATS.items() if dtype == values.dtype)
    native = library()
    has_dot = native is not None and native.isa == BFLOAT16_ISA
    return "bfloat16_bfloat16" if name == "bfloat16" and rounds_activations and has_dot else name


class Matrix:
    """A weight ready to be multiplied: packed where the native library runs, as it is elsewhere.

    `is_gated`: the first half of its outputs is the gate of the second (see the op).
    """

    def __init__(
        self, weight: Weight, *, device: str, dtype: torch.dtype, is_gated: bool = False
    ) -> None:
        is_native = runs_natively(device, dtype)
        self._order = weight.order
        weight = replace(weight, order=None)
        self._packed = Packed(weight, is_gated=is_gated) if is_native else None
        self._weight = None if is_native else weight
        self._is_gated = is_gated

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what the matrix keeps in memory, by name."""
        if self._packed is not None:
            return self._packed.tensors()
        assert self._weight is not None
        kept = {
            "values": self._weight.values,
            "scales": self._weight.scales,
            "zeros": self._weight.zeros,
            "offsets": self._weight.offsets,
            "steps": self._weight.steps,
            "offset_steps": self._weight.offset_steps,
            "table": self._weight.table,
            "outer": self._weight.outer,
        }
        return {name: t for name, t in kept.items() if t is not None}

    def multiply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        """Return act(x W^T + bias) + residual, or act(gate) * up. Shapes: x [M, K] -> [M, N]"""
        if self._order is not None:
            x = x.index_select(1, self._order)
        if self._packed is not None:
            return self._packed(x, bias, residual, activation)
        assert self._weight is not None
        out = reference(x.float(), self._weight, bias, residual, activation, self._is_gated)
        return out.to(x.dtype)

    @property
    def packed(self) -> Packed | None:
        """Return the native form, or None where there is none that takes inputs as they come."""
        return self._packed if self._order is None else None

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows of the matrix that is meant. Shapes: index [M] int64 -> [M, K] float32"""
        found = self._rows(index)
        if self._order is None:
            return found
        meant = torch.empty_like(found)
        meant[:, self._order] = found
        return meant

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return self._packed.rows(index)
        assert self._weight is not None
        return self._weight.rows(index)


def multiply_groups(
    matrices: Sequence[Matrix], x: torch.Tensor, counts: Sequence[int], activation: str = "none"
) -> torch.Tensor:
    """Return consecutive groups of rows, each times its own matrix (all of one shape): in one call
    where all are packed in one format.

    Shapes: x [sum of counts, K] -> [sum of counts, N]
    """
    packed = [m.packed for m in matrices if m.packed is not None]
    if len(packed) == len(matrices) and len({one.format for one in packed}) == 1:
        return native.multiply_groups(packed, x, counts, activation)
    parts = zip(matrices, x.split(list(counts)), strict=True)
    return torch.cat([m.multiply(part, activation=activation) for m, part in parts if len(part)])
