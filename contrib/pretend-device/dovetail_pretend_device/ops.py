"""The device's own implementations of ops. Called as the reference of the op is."""

from __future__ import annotations

import torch

from dovetail_kernels.op import Implementation

calls = {"rms_norm": 0}
"""How often each was called: a real device has a profiler for that."""


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    delta: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return norm(x + delta) * (weight + offset) + residual. Mutates: x, when there is a delta"""
    calls["rms_norm"] += 1
    if delta is not None:
        x.add_(delta)
    wide = x.float()
    scaled = wide / (wide.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt()
    if weight is not None:
        scaled = scaled * (weight.float() + offset)
    out = scaled.to(x.dtype)
    return out if residual is None else residual + out


RMS_NORM = Implementation(
    name="pretend",
    function=rms_norm,
    devices=("cpu",),  # torch's name of the device that the worker opens
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
)
