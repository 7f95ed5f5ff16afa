"""A step's keys and values into a cache [2, N, P, K, D], by the fastest kernel that runs here.

For backends whose package attends over such a cache but does not write it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from dovetail.interfaces.attention import AttentionSpec
from dovetail_kernels import load_op


def write(
    spec: AttentionSpec,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Store k and v, in a cache of 8-bit floats divided by the spec's scales. Mutates: cache"""
    run = _writer(k.device.type, k.dtype)
    run(k, v, cache, slots, k_scale=spec.k_scale, v_scale=spec.v_scale)


def window_sides(spec: AttentionSpec) -> tuple[int, int]:
    """Return how many keys a query sees to its left and right, -1 for all. (A window counts the
    query's own key.)"""
    left = -1 if spec.window_tokens is None else spec.window_tokens - 1
    return left, 0 if spec.is_causal and left >= 0 else left


@cache
def _writer(device: str, dtype: torch.dtype) -> Callable[..., Any]:
    return load_op("cache_write").pick(device, dtype)
