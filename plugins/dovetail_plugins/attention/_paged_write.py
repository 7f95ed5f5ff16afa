"""A step's keys and values into a cache [2, N, P, K, D], by the fastest kernel that runs here.

For backends whose package attends over such a cache but does not write it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from dovetail.interfaces.attention import AttentionCall, AttentionSpec
from dovetail_kernels import load_op


def write(call: AttentionCall, slots: torch.Tensor) -> None:
    """Store a call's k and v, if it has any, in a cache of 8-bit floats divided by the spec's
    scales. Mutates: the call's cache"""
    if call.k is not None:
        run, spec = _writer(call.k.device.type, call.k.dtype), call.spec
        run(call.k, call.v, call.cache, slots, k_scale=spec.k_scale, v_scale=spec.v_scale)


def window_sides(spec: AttentionSpec) -> tuple[int, int]:
    """Return how many keys a query sees to its left and right, -1 for all. (A window counts the
    query's own key.)"""
    left = -1 if spec.window_tokens is None else spec.window_tokens - 1
    return left, 0 if spec.is_causal and left >= 0 else left


@cache
def _writer(device: str, dtype: torch.dtype) -> Callable[..., Any]:
    return load_op("cache_write").pick(device, dtype)
