"""Draws: one uniform number per (seed, output position), then the inverse of the distribution.

The uniform numbers come from a stateless counter-based hash, so a request draws the same tokens
alone, in any batch, and after a preemption. Source of the hash: Steele, Lea, Flood, "Fast
splittable pseudorandom number generators" (splitmix64), OOPSLA 2014. Knows no filter or penalty.
"""

from __future__ import annotations

import numpy as np
import torch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
BLOCK_TOKENS = 256
"""Tokens whose weights are summed before the draw searches among blocks, then inside one."""


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return one number in [0, 1) per pair. Shapes: seeds [S] uint64, positions [S] -> [S] float64

    Two seeds share no stretch of their sequences, since the seed itself is hashed first.
    """
    counter = positions.astype(np.uint64) + np.uint64(1)
    bits = _mixed(_mixed(seeds + GOLDEN) + GOLDEN * counter)
    fractions: np.ndarray = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def _mixed(z: np.ndarray) -> np.ndarray:
    """Return splitmix64's output function of z. Shapes: [S] uint64 -> [S] uint64"""
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


def draw(shifted: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return one token per row by the inverse of its cumulative distribution.

    Weights are exp(shifted); sums are float64 in token order, first over blocks, then inside one
    block, so no row's result depends on its neighbours. A token of weight 0 is never drawn.
    Shapes: shifted [S, V] float32, row maximum 0; uniform [S] float64 -> [S] int64
    """
    weights = _padded_weights(shifted)
    block_sums = weights.sum(dim=2, dtype=torch.float64)
    block, before, target = _find(block_sums.cumsum(dim=1), uniform)
    inside = weights.gather(1, block.view(-1, 1, 1).expand(-1, 1, BLOCK_TOKENS)).squeeze(1)
    cumulative = inside.cumsum(dim=1, dtype=torch.float64)
    offset = _search(cumulative, target - before)
    return (block * BLOCK_TOKENS + offset).clamp_(max=shifted.shape[1] - 1)


def _padded_weights(shifted: torch.Tensor) -> torch.Tensor:
    """Return exp(shifted) in blocks, zeros at the end. Shapes: [S, V] -> [S, B, BLOCK_TOKENS]"""
    num_rows, vocab = shifted.shape
    num_blocks = -(-vocab // BLOCK_TOKENS)
    weights = shifted.new_empty((num_rows, num_blocks * BLOCK_TOKENS))
    torch.exp(shifted, out=weights[:, :vocab])
    weights[:, vocab:] = 0.0
    return weights.view(num_rows, num_blocks, BLOCK_TOKENS)


def _find(
    cumulative: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (block, sum before it, target sum). Shapes: [S, B], [S] -> [S] each"""
    target = uniform * cumulative[:, -1]
    block = _search(cumulative, target)
    previous = cumulative.gather(1, (block - 1).clamp_(min=0).unsqueeze(1)).squeeze(1)
    return block, torch.where(block > 0, previous, 0.0), target


def _search(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulative sum is above target, among those of weight > 0.

    Rounding may put target at or above the last sum; then the last index with weight is taken.
    Shapes: [S, B], [S] -> [S] int64
    """
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(target, below).unsqueeze(1)
    found = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return found.clamp_(max=cumulative.shape[1] - 1)
