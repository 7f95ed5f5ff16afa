"""The definition of moe in torch: every expert multiplies the tokens that picked it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail_kernels.gemm.reference import reference as gemm
from dovetail_kernels.gemm.weight import Weight

SWIGLU_OAI = "swiglu_oai"


def _swiglu_oai(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """Return the gate of gpt-oss (see the op). Shapes: gate_up [T, 2F] float32 -> [T, F]"""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)


def reference(
    x: torch.Tensor,
    gate_up: Sequence[Weight],
    down: Sequence[Weight],
    weights: torch.Tensor,
    experts: torch.Tensor,
    activation: str,
    is_gated: bool = True,
    biases: tuple[torch.Tensor, torch.Tensor] | None = None,
    limit: float = 0.0,
) -> torch.Tensor:
    """Return the weighted sum of the picked experts' outputs (see the op).

    Shapes: x [T, E], weights and experts [T, A], biases [X, 2F] and [X, E] -> [T, E]
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, (first, second) in enumerate(zip(gate_up, down, strict=True)):
        token, place = torch.where(experts == expert)
        if not len(token):
            continue
        one, two = (None, None) if biases is None else (own[expert] for own in biases)
        if activation == SWIGLU_OAI:
            inner = _swiglu_oai(gemm(x[token].float(), first, one), limit).to(x.dtype)
        else:
            inner = gemm(x[token], first, one, activation=activation, is_gated=is_gated)
        own = gemm(inner, second, two).float() * weights[token, place].unsqueeze(1)
        out.index_add_(0, token, own)
    return out.to(x.dtype)
