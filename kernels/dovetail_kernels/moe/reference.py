"""The definition of moe in torch: every expert multiplies the tokens that picked it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail_kernels.gemm.reference import reference as gemm
from dovetail_kernels.gemm.weight import Weight

SWIGLU_OAI, SILU_CLAMPED = "swiglu_oai", "silu_clamped"
CLAMPED = {SWIGLU_OAI: (1.702, 1.0), SILU_CLAMPED: (1.0, 0.0)}
"""Gates that clamp both halves: the factor in the sigmoid, and what is added to the second half."""


def _clamped(gate_up: torch.Tensor, activation: str, limit: float) -> torch.Tensor:
    """Return the gate of clamped halves (see the op). Shapes: gate_up [T, 2F] float32 -> [T, F]"""
    factor, more = CLAMPED[activation]
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(factor * gate) * (up.clamp(-limit, limit) + more)


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
        if activation in CLAMPED:
            inner = _clamped(gemm(x[token].float(), first, one), activation, limit).to(x.dtype)
        else:
            inner = gemm(x[token], first, one, activation=activation, is_gated=is_gated)
        own = gemm(inner, second, two).float() * weights[token, place].unsqueeze(1)
        out.index_add_(0, token, own)
    return out.to(x.dtype)
