"""Draws: one uniform number per (seed, output position), then the inverse of the distribution.

The uniform numbers come from a stateless counter-based hash and the weights are integers
(`dovetail_kernels.sample.definition`), so a request draws the same tokens alone, in any batch,
after a preemption, and from the native kernels. This is the path for devices without those.
"""

from __future__ import annotations

import torch

from dovetail_kernels.sample.definition import target_of, weights

BLOCK_TOKENS = 256
"""Tokens per block: the draw searches among sums of blocks, then inside one."""


def draw(shifted: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return one token per row by the inverse of its cumulative distribution.

    Sums of weights are exact, so no row's result depends on its neighbours. A token of weight 0 is
    never drawn.
    Shapes: shifted [S, V] float32, no NaN, row maximum 0; uniform [S] float64 -> [S] int64
    """
    weight = _padded_weights(shifted)
    # A block weighs less than 2^53, which float64 holds; a row does not.
    cumulative = weight.sum(dim=2, dtype=torch.float64).long().cumsum(dim=1)
    target = target_of(cumulative[:, -1], uniform).unsqueeze(1)
    block = torch.searchsorted(cumulative, target, right=True)
    before = cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0)
    inside = weight.gather(1, block.unsqueeze(2).expand(-1, 1, BLOCK_TOKENS)).squeeze(1)
    offset = torch.searchsorted(inside.long().cumsum(dim=1), target.sub_(before), right=True)
    return block.mul_(BLOCK_TOKENS).add_(offset).squeeze(1)


def _padded_weights(shifted: torch.Tensor) -> torch.Tensor:
    """Return weights in blocks, zeros at the end. Shapes: [S, V] -> [S, B, BLOCK_TOKENS]"""
    num_rows, vocab = shifted.shape
    num_blocks = -(-vocab // BLOCK_TOKENS)
    padded = shifted.new_zeros((num_rows, num_blocks * BLOCK_TOKENS))
    padded[:, :vocab] = weights(shifted)
    return padded.view(num_rows, num_blocks, BLOCK_TOKENS)
