"""The definition of moe in torch: every expert multiplies the tokens that picked it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail_kernels.gemm.reference import reference as gemm
from dovetail_kernels.gemm.weight import Weight


def reference(
    x: torch.Tensor,
    gate_up: Sequence[Weight],
    down: Sequence[Weight],
    weights: torch.Tensor,
    experts: torch.Tensor,
    activation: str,
    is_gated: bool = True,
) -> torch.Tensor:
    """Return the weighted sum of the picked experts' outputs (see the op).

    Shapes: x [T, E], weights and experts [T, A] -> [T, E]
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, (first, second) in enumerate(zip(gate_up, down, strict=True)):
        token, place = torch.where(experts == expert)
        if not len(token):
            continue
        inner = gemm(x[token], first, activation=activation, is_gated=is_gated)
        own = gemm(inner, second).float() * weights[token, place].unsqueeze(1)
        out.index_add_(0, token, own)
    return out.to(x.dtype)
