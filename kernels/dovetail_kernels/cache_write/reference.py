"""The definition of cache_write in torch."""

from __future__ import annotations

import torch

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INT8_STEPS = 127.0


def reference(
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Store k and v. Shapes: k and v [T, K, D], cache [2, N, P, K, D], slots [T],
    scales [2, N, P, K]

    Mutates: cache, scales
    """
    place = slots // cache.shape[2], slots % cache.shape[2]
    for half, (x, scale) in enumerate(((k, k_scale), (v, v_scale))):
        numbers = x.to(cache.dtype)
        if scales is not None:
            numbers, own = _int8(x.float())
            scales[half][place] = own
        elif cache.dtype in FLOAT8:
            numbers = _float8(x.float(), scale, cache.dtype)
        _bytes_of(cache[half])[place] = _bytes_of(numbers)


def _float8(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return x / scale, clamped to the type's range."""
    largest = torch.finfo(dtype).max
    # With a plain number, a GPU would multiply with 1 / scale.
    return (x / torch.full_like(x, scale)).clamp(-largest, largest).to(dtype)


def _int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers and their scales. Shapes: x [T, K, D] -> [T, K, D], [T, K]"""
    largest = x.abs().amax(-1)
    scales = largest / torch.full_like(largest, INT8_STEPS)
    divisors = torch.where(scales == 0, torch.ones_like(scales), scales)
    return (x / divisors.unsqueeze(-1)).round().to(torch.int8), scales


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes in a type that torch can move about."""
    return x.view(torch.uint8) if x.dtype in FLOAT8 else x
