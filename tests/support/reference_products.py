"""Products of the matrices that are meant, in torch, their activations rounded as one likes.

What kernels are compared with where a rounding is in question: layers multiply by the matrix that
their method tells (`Weight.dequantize`), in float32. Shares no product and no packing with what it
checks. Shape letters: T tokens, I inputs, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.reference import ACTIVATIONS
from dovetail_kernels.gemm.weight import Weight, rounds_to_int8
from dovetail_plugins.layers.stored import matrix_linear

Rounding = Callable[[torch.Tensor], torch.Tensor]


def per_token(x: torch.Tensor) -> torch.Tensor:
    """Return activations in int8, a scale a token. Shapes: [T, I] -> same"""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-20)
    return (x / scale).round() * scale


def per_group(x: torch.Tensor) -> torch.Tensor:
    """Return activations in int8, a scale for 32 inputs. Shapes: [T, I] -> same"""
    return per_token(x.reshape(*x.shape[:-1], -1, 32)).flatten(-2)


class Meant(Matrix):
    """The matrix that a weight means, in float32. `rounding` of activations is for layers whose
    products would make them int8; `token_rounding` for those that say so themselves."""

    rounding: Rounding | None = None
    token_rounding: Rounding | None = per_token

    def __init__(
        self,
        weight: Weight,
        *,
        device: str,
        dtype: torch.dtype,
        is_gated: bool = False,
        rounds_activations: bool = False,
    ) -> None:
        self._wide, self._is_gated = weight.dequantize(), is_gated
        self.is_rounded = rounds_to_int8(weight.format)
        self._is_token = weight.has_token_scales

    def multiply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        rounding = Meant.token_rounding if self._is_token else Meant.rounding
        if self.is_rounded and rounding is not None:
            x = rounding(x)
        out = F.linear(x, self._wide, bias)
        if self._is_gated:
            gate, up = out.chunk(2, dim=-1)
            return ACTIVATIONS[activation](gate) * up
        out = ACTIVATIONS[activation](out)
        return out if residual is None else out + residual

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"wide": self._wide}

    @property
    def packed(self) -> None:
        return

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return self._wide[index]


@contextmanager
def meant() -> Iterator[None]:
    """Make layers of a `with` block multiply by the matrix that they mean."""
    with patch.object(matrix_linear, "Matrix", Meant):
        yield


@contextmanager
def rounded(rounding: Rounding | None, *, of_token: Rounding | None = per_token) -> Iterator[None]:
    """Round the activations of `Meant` inside a `with` block."""
    with patch.multiple(Meant, rounding=_plain(rounding), token_rounding=_plain(of_token)):
        yield


def _plain(rounding: Rounding | None) -> Any:
    return None if rounding is None else staticmethod(rounding)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the root of the mean square of the distance, in deviations of what is wanted."""
    return float((found - wanted).double().square().mean().sqrt() / wanted.double().std())
