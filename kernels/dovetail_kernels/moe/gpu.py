"""The part of moe that expert layers need on a GPU: packed experts, and their availability."""

from __future__ import annotations

from dovetail_kernels.gemm.gpu import pack
from dovetail_kernels.gemm.stacked import stack
from dovetail_kernels.op import Arguments


def prepare(arguments: Arguments) -> Arguments:
    """Return a case's arguments with the experts' weights packed, once for many calls."""
    device, is_gated = arguments["x"].device, arguments.get("is_gated", True)
    packed = {
        name: stack([pack(w, device=device, is_gated=gated) for w in arguments[name]])
        for name, gated in (("gate_up", is_gated), ("down", False))
    }
    return {**arguments, **packed}
