"""Halves: values of more than 4 bits as two 4-bit matrices, whose products are added.

(v - z) * s = (v / 16 - z / 16) * 16 s + (v % 16 - z % 16) * s, each term a 4-bit matrix with zero
points. So 8 bits in groups take 8 bits in memory, though no kernel knows them. Knows no checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.reference import ACTIVATIONS
from dovetail_kernels.gemm.weight import Weight, join


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A matrix that is the sum of two."""

    upper: Weight
    lower: Weight

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        return self.upper.shape

    def dequantize(self) -> torch.Tensor:
        """Return the matrix that is meant. Shapes: [N, K] float32"""
        return self.upper.dequantize() + self.lower.dequantize()

    def matrix(self, *, device: str, dtype: torch.dtype) -> Summed:
        """Return the matrix as it is multiplied."""
        upper, lower = (Matrix(w, device=device, dtype=dtype) for w in (self.upper, self.lower))
        return Summed(upper, lower)


def join_halves(parts: Sequence[Halves]) -> Halves | None:
    """Return matrices as one, along the outputs; None where they differ in kind."""
    upper, lower = join([p.upper for p in parts]), join([p.lower for p in parts])
    return None if upper is None or lower is None else Halves(upper=upper, lower=lower)


class Summed(Matrix):
    """Two matrices of one shape whose products are added. With an activation, the first half of
    the outputs is the gate of the second."""

    def __init__(self, upper: Matrix, lower: Matrix) -> None:
        self._halves = {"upper": upper, "lower": lower}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what both keep in memory, by name."""
        return {
            f"{half}_{name}": tensor
            for half, matrix in self._halves.items()
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
        first = self._halves["upper"].multiply(x, bias, residual)
        out = self._halves["lower"].multiply(x, None, first)
        if activation == "none":
            return out
        gate, up = out.chunk(2, dim=-1)
        return ACTIVATIONS[activation](gate) * up

    @property
    def packed(self) -> None:
        """Return None: there is no one packed weight."""
        return

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows of the matrix that is meant. Shapes: index [M] int64 -> [M, K] float32"""
        return self._halves["upper"].rows(index) + self._halves["lower"].rows(index)
