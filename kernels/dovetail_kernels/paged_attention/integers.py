"""KV caches of whole numbers: how many bits keys and values take, and what is stored of them.

Rotated keys and values are whole numbers of -127 .. 127 under a scale per token and kv head. In 4
bits such a number is step * q + offset, q 0 .. 15, with a step and an offset per 32 numbers: again
one of 8 bits. Keys in a cache of fewer bits may be differences from the first key of their cell of
16 tokens, which is stored in 8 bits; their scale then has its sign bit set. The plain form of a
cache, which the definitions in torch take, are these numbers in int8 and these scales.
Sources: Liu et al., KIVI, 2024; Hooper et al., KVQuant, 2024.
"""

from __future__ import annotations

import torch

from dovetail_kernels.integer_caches import CELL_TOKENS, GROUP

MOST = 127.0


def rounded(x: torch.Tensor, bits: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers and their scales. Shapes: x [T, K, D] -> [T, K, D] int8, [T, K]"""
    largest = x.abs().amax(-1)
    scales = largest / torch.full_like(largest, MOST)
    divisors = torch.where(scales == 0, torch.ones_like(scales), scales)
    numbers = x / divisors.unsqueeze(-1)
    if bits == 4:
        step, offset, q = grouped(numbers)
        numbers = (step * q + offset).flatten(-2)
    return numbers.round().to(torch.int8), scales


def grouped(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return step, offset and q of numbers of -127 .. 127. Shapes: [..., D] -> [..., D / 32, 1]
    twice, [..., D / 32, 32]"""
    groups = numbers.unflatten(-1, (-1, GROUP))
    high, low = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    step = ((high - low) / 15).ceil().clamp(1, 17)
    offset = ((high + low) * 0.5 - 7.5 * step).round().clamp_max(127 - 15 * step).clamp_min(-128)
    return step, offset, ((groups - offset) / step).round().clamp(0, 15)


def differences(
    k: torch.Tensor, first: torch.Tensor, bits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers and scales of keys, each as its difference from `first` where that is smaller.

    Shapes: k and first [T, K, D] -> [T, K, D] int8, [T, K]
    """
    away = k - first
    is_smaller = away.abs().amax(-1) < k.abs().amax(-1)
    numbers, scales = rounded(torch.where(is_smaller.unsqueeze(-1), away, k), bits)
    return numbers, torch.where(is_smaller, -scales, scales)


def widened(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what the numbers of a cache stand for. Shapes: [2, N, P, K, D], [2, N, P, K] ->
    [2, N, P, K, D] float32"""
    x = numbers.float() * scales.float().abs().unsqueeze(-1)
    if x.shape[2] % CELL_TOKENS:
        return x  # only keys in 8 bits that are no differences come in such blocks
    cells = x.unflatten(2, (-1, CELL_TOKENS))
    is_away = scales.signbit().unsqueeze(-1).unflatten(2, (-1, CELL_TOKENS))
    first = cells[:, :, :, :1]
    return torch.where(is_away, cells + first, cells).flatten(2, 3)
