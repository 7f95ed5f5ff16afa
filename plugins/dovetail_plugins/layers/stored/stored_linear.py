"""StoredLinear: a layer that the checkpoint stores quantized, in the tensors that a method names.

A method names the tensors and the matrix that one part's tensors (q, k, v or gate, up) represent;
fused parts become one matrix if they are of one kind, and stay several otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.native import Packed, multiply_beside
from dovetail_kernels.gemm.reference import ACTIVATIONS
from dovetail_kernels.gemm.weight import Weight, join
from dovetail_plugins.layers.stored.matrix_linear import MatrixLinear
from dovetail_plugins.layers.stored.rounding import AUTO

Tensors = Callable[[LinearSpec], tuple[StoredTensor, ...]]
"""The tensors of a layer."""
PartWeight = Callable[[Mapping[str, torch.Tensor]], Weight]
"""The tensors of one part become its matrix [outputs of the part, I]."""


class StoredLinear(MatrixLinear):
    """A layer by its checkpoint's tensors. `has_own_rows`: a row of the matrix depends on the same
    row of the tensors alone, so that fused parts of one tensor are made at once."""

    def __init__(
        self,
        tensors: Tensors,
        weight: PartWeight,
        *,
        activations: str = AUTO,
        has_own_rows: bool = False,
    ) -> None:
        self._tensors = tensors
        self._weight = weight
        self._has_own_rows = has_own_rows
        self.activations = activations

    def stored(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tensors of the layer."""
        return self._tensors(spec)

    def packed_of(self, tensors: Mapping[str, torch.Tensor], spec: LinearSpec) -> Matrix:
        """Return the loaded tensors as one matrix, or as several behind one interface.

        Checkpoint bits are decoded on the host: matrices go to the device packed.
        """
        stored = self.stored(spec)
        here = {name: tensor.cpu() for name, tensor in tensors.items()}
        if self._has_own_rows and len(stored) == 1:
            return self.packed(self._weight(here), spec, is_gated=spec.is_gated)
        weights = [
            self._weight(part_of(here, stored, spec, number))
            for number in range(len(spec.out_sizes))
        ]
        joined = join(weights)
        if joined is not None:
            return self.packed(joined, spec, is_gated=spec.is_gated)
        return Several([self.packed(w, spec, is_gated=False) for w in neighbours(weights)])


def neighbours(weights: Sequence[Weight]) -> list[Weight]:
    """Return matrices, joining consecutive ones of the same kind."""
    found: list[Weight] = []
    for weight in weights:
        both = join([found[-1], weight]) if found else None
        found[-1:] = [*found[-1:], weight] if both is None else [both]
    return found


class Several(Matrix):
    """Matrices that share their inputs and cannot be one: their outputs are joined.

    With an activation, the first half of all outputs is the gate of the second.
    """

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.parts = tuple(matrices)
        packed = [one for m in matrices if isinstance(one := m.packed, Packed)]
        self._all_packed = packed if len(packed) == len(matrices) else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the matrices keep, by name."""
        return {
            f"{number}_{name}": tensor
            for number, matrix in enumerate(self.parts)
            for name, tensor in matrix.tensors().items()
        }

    def multiply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        """Return x W^T + bias + residual, or act(gate) * up. Shapes: x [M, K] -> [M, N or F]"""
        if self._all_packed is not None and activation == "none":
            return multiply_beside(self._all_packed, x, bias, residual)
        out = torch.cat([matrix.multiply(x) for matrix in self.parts], dim=-1)
        out = out if bias is None else out + bias
        if activation != "none":
            gate, up = out.chunk(2, dim=-1)
            return ACTIVATIONS[activation](gate) * up
        return out if residual is None else out + residual

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T, both halves side by side. Shapes: x [M, K] -> [M, N]"""
        return self.multiply(x)

    @property
    def packed(self) -> None:
        """Return None: there is no single packed weight."""
        return

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Raise NotImplementedError: tables are never fused."""
        raise NotImplementedError("fused matrices of different kinds are not one table")


def part_of(
    tensors: Mapping[str, torch.Tensor],
    stored: Sequence[StoredTensor],
    spec: LinearSpec,
    number: int,
) -> dict[str, torch.Tensor]:
    """Return the tensors of one of the fused parts."""
    parts = {}
    for one in stored:
        own_parts = range(len(spec.out_sizes)) if one.parts is None else one.parts
        if number not in own_parts:
            continue
        tensor = tensors[one.name]
        if one.is_per_part:
            tensor = tensor[own_parts.index(number)]
        elif one.output_axis is not None and len(own_parts) > 1:
            sizes = [spec.out_sizes[part] for part in own_parts]
            size, place = tensor.shape[one.output_axis], own_parts.index(number)
            start = size * sum(sizes[:place]) // sum(sizes)
            length = size * sizes[place] // sum(sizes)
            tensor = tensor.narrow(one.output_axis, start, length)
        parts[one.name] = tensor
    return parts
