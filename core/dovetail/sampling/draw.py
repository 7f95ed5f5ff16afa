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
BELOW = 1.0 - 2.0**-50
"""Keeps a target below the last sum whatever rounding does, so a search always finds a weight."""
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
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def draw(shifted: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return one token per row by the inverse of its cumulative distribution.

    Weights are exp(shifted); sums are float64 in token order, first over blocks, then inside one
    block, so no row's result depends on its neighbours. A token of weight 0 is never drawn.
    Shapes: shifted [S, V] float32, no NaN, row maximum 0; uniform [S] float64 -> [S] int64
    """
    weights = _padded_weights(shifted)
    cumulative = weights.sum(dim=2, dtype=torch.float64).cumsum(dim=1)
    target = (uniform * cumulative[:, -1]).mul_(BELOW).unsqueeze(1)
    block = torch.searchsorted(cumulative, target, right=True)
    before = cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)
    inside = weights.gather(1, block.unsqueeze(2).expand(-1, 1, BLOCK_TOKENS)).squeeze(1)
    cumulative = inside.cumsum(dim=1, dtype=torch.float64)
    # Both sums of the block may differ in the last bit, so the rest may lie beyond its end.
    target = torch.minimum(target.sub_(before), cumulative[:, -1:] * BELOW)
    offset = torch.searchsorted(cumulative, target, right=True)
    return block.mul_(BLOCK_TOKENS).add_(offset).squeeze(1)


def _padded_weights(shifted: torch.Tensor) -> torch.Tensor:
    """Return exp(shifted) in blocks, zeros at the end. Shapes: [S, V] -> [S, B, BLOCK_TOKENS]"""
    num_rows, vocab = shifted.shape
    num_blocks = -(-vocab // BLOCK_TOKENS)
    weights = shifted.new_empty((num_rows, num_blocks * BLOCK_TOKENS))
    torch.exp(shifted, out=weights[:, :vocab])
    weights[:, vocab:] = 0.0
    return weights.view(num_rows, num_blocks, BLOCK_TOKENS)
