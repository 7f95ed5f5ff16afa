"""Rows of GGUF blocks as the matrix that kernels multiply."""

from __future__ import annotations

import torch

from dovetail_kernels.gemm.matrix import stored_format
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.gguf._integers import dequantize


def float_weight(values: torch.Tensor) -> Weight:
    """Return a matrix in full precision."""
    return Weight(format=stored_format(values, rounds_activations=True), values=values)


def weight_of(type_name: str, rows: torch.Tensor, *, activations: str) -> Weight:
    """Return the matrix of a type. Shapes: rows [N, bytes] uint8 -> [N, K]"""
    values = dequantize(type_name, rows).bfloat16()
    return Weight(format="bfloat16", values=values)
