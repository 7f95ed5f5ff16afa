"""The definition of gemm in torch: the matrix that is meant, multiplied in float."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from dovetail_kernels.gemm.weight import Weight, rounds_to_int8

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def reference(
    x: torch.Tensor,
    weight: Weight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    activation: str = "none",
    is_gated: bool = False,
) -> torch.Tensor:
    """Return act(x W^T + bias) + residual, or act(gate) * up, in x's dtype.

    Shapes: x [M, K], bias [N or 2 F] or one for each row -> [M, N or F]
    """
    out = _product(x.float(), weight) if weight.values.dtype != x.dtype else _plain(x, weight)
    if bias is not None:
        out = out + bias
    if is_gated:
        gate, up = out.chunk(2, dim=-1)
        return (ACTIVATIONS[activation](gate) * up).to(x.dtype)
    out = ACTIVATIONS[activation](out)
    return (out if residual is None else out + residual).to(x.dtype)


def _plain(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return x W^T of one dtype, as torch multiplies it."""
    return x @ weight.values.T


def _product(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return x W^T; int8 activations with a scale a row are multiplied exactly as rounded."""
    if weight.has_token_scales and rounds_to_int8(weight.format):
        scale = x.abs().amax(dim=1, keepdim=True) / 127.0
        inverse = torch.where(scale > 0, 127.0 / x.abs().amax(dim=1, keepdim=True), 0.0)
        x = (x * inverse).round()
        return ((x.double() @ weight.dequantize().double().T) * scale).float()
    if weight.format == "bfloat16_bfloat16":
        x = x.bfloat16().float()
    return x @ weight.dequantize().T
