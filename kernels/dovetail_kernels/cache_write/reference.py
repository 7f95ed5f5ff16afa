"""The definition of cache_write in torch."""

from __future__ import annotations

import torch

from dovetail_kernels.integer_caches import CELL_TOKENS
from dovetail_kernels.paged_attention.integers import differences, rounded

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def reference(
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    bits: tuple[int, int] = (8, 8),
) -> None:
    """Store k and v. Shapes: k and v [T, K, D], cache [2, N, P, K, D], slots [T],
    scales [2, N, P, K]

    Mutates: cache, scales
    """
    place = slots // cache.shape[2], slots % cache.shape[2]
    if scales is not None and bits != (8, 8):
        cache[1][place], scales[1][place] = rounded(v.float(), bits[1])
        _write_keys(k.float(), cache[0], slots, scales[0], bits[0])
        return
    for half, (x, scale) in enumerate(((k, k_scale), (v, v_scale))):
        numbers = x.to(cache.dtype)
        if scales is not None:
            numbers, own = rounded(x.float())
            scales[half][place] = own
        elif cache.dtype in FLOAT8:
            numbers = _float8(x.float(), scale, cache.dtype)
        _bytes_of(cache[half])[place] = _bytes_of(numbers)


def _float8(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return x / scale, clamped to the type's range."""
    largest = torch.finfo(dtype).max
    # With a plain number, a GPU would multiply with 1 / scale.
    return (x / torch.full_like(x, scale)).clamp(-largest, largest).to(dtype)


def _write_keys(
    k: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scales: torch.Tensor, bits: int
) -> None:
    """Store keys, the first of every 16 tokens in 8 bits, others maybe as differences from it.

    Shapes: k [T, K, D], cache [N, P, K, D], scales [N, P, K]. Mutates: cache, scales
    """
    numbers, own = cache.flatten(0, 1), scales.flatten(0, 1)
    is_first = slots % CELL_TOKENS == 0
    at, others = slots[is_first], slots[~is_first]
    numbers[at], own[at] = rounded(k[is_first])
    at = others // CELL_TOKENS * CELL_TOKENS
    first = numbers[at].float() * own[at].unsqueeze(-1)
    numbers[others], own[others] = differences(k[~is_first], first, bits)


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes in a type that torch can move about."""
    return x.view(torch.uint8) if x.dtype in FLOAT8 else x
