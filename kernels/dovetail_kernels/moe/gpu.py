"""What the layers of experts need of moe on a GPU: packed experts, and whether there are any."""

from __future__ import annotations

from dovetail_kernels.gemm.gpu import pack, stack
from dovetail_kernels.op import Arguments


def prepare(arguments: Arguments) -> Arguments:
    """Return a case's arguments with the experts' weights packed, once for many calls."""
    device = arguments["x"].device
    packed = {
        name: stack([pack(w, device=device, is_gated=name == "gate_up") for w in arguments[name]])
        for name in ("gate_up", "down")
    }
    return {**arguments, **packed}
