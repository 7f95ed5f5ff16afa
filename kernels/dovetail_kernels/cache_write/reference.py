"""The definition of cache_write in torch."""

from __future__ import annotations

import torch


def reference(k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Store k and v. Shapes: k and v [T, K, D], cache [2, N, P, K, D], slots [T]

    Mutates: cache
    """
    flat = cache.view(2, -1, *cache.shape[3:])
    flat[0, slots] = k.to(cache.dtype)
    flat[1, slots] = v.to(cache.dtype)
