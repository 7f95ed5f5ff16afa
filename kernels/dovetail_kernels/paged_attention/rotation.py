"""A rotation of queries and keys that spreads each channel over all of them.

Vectors rotated alike have the same products, and a key without outlier channels has more levels if
its numbers share one scale (an int8 cache). The rotation is a Walsh-Hadamard transform of every B
numbers, B the largest power of two that divides the head size. Keys are left longer by the root of
B, queries made shorter by as much twice: powers of two. Source: Ashkboos et al., QuaRot, 2024,
section 4.
"""

from __future__ import annotations

from functools import cache

import torch


def rotated_queries(q: torch.Tensor) -> torch.Tensor:
    """Return queries for keys that are rotated. Shapes: q [T, H, D] -> same"""
    return rotated_keys(q) / block_of(q.shape[-1])


def rotated_keys(k: torch.Tensor) -> torch.Tensor:
    """Return keys rotated. Shapes: k [T, K, D] -> same"""
    block = block_of(k.shape[-1])
    parts = k.unflatten(-1, (-1, block))
    return (parts @ _matrix(block, k.dtype, k.device)).flatten(-2)


def block_of(size: int) -> int:
    """Return how many numbers are rotated together."""
    return size & -size


@cache
def _matrix(block: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the transform: ones and minus ones. Shapes: [B, B]"""
    matrix = torch.ones(1, 1)
    while len(matrix) < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.to(device, dtype)
