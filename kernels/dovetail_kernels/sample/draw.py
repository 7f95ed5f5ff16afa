"""Draws: one uniform number per (seed, output position), then the inverse of the distribution.

The uniform numbers come from a stateless counter-based hash and the weights are integers
(`dovetail_kernels.sample.definition`), so a request draws the same tokens alone, in any batch,
after a preemption, and from the native kernels. This is the path for devices without those.
"""

from __future__ import annotations

import numpy as np
import torch

from dovetail_kernels.sample.definition import target_of, weights
from dovetail_kernels.sample.few import FewLeft

BLOCK_TOKENS = 256
"""Tokens per block: the draw searches among sums of blocks, then inside one."""


def scale(logits: torch.Tensor, factors: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Make row maxima 0 and divide by the temperature; return the old maxima and the factors.

    Shapes: logits [S, V], factors [S] -> [S, 1] twice
    Mutates: logits
    """
    inverse = torch.from_numpy(factors).to(logits.device).unsqueeze(1)
    best = logits.amax(dim=1, keepdim=True)
    # Rows that are not finite would spread NaN into the searches; their token is invalid.
    logits.sub_(best).masked_fill_((best - best) != 0, 0.0)
    logits.mul_(inverse)
    return best, inverse


def best_tokens(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the first most likely token of each row and its logit. Shapes: [S, V] -> [S], [S]"""
    if logits.device.type != "cpu":
        values, ids = logits.max(dim=1)
        return ids.tolist(), values.tolist()
    # numpy's argmax is vectorised; torch's takes up to twenty times as long on a CPU.
    return logits.numpy().argmax(axis=1).tolist(), logits.amax(dim=1).tolist()


def draw(shifted: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return one token per row by the inverse of its cumulative distribution.

    Sums of weights are exact, so no row's result depends on its neighbours. A token of weight 0 is
    never drawn.
    Shapes: shifted [S, V] float32, no NaN, row maximum 0; uniform [S] float64 -> [S] int64
    """
    few = FewLeft.of(shifted)
    return _draw(shifted, uniform) if few is None else few.token_ids(_draw(few.logits, uniform))


def _draw(shifted: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    weight = _padded_weights(shifted)
    # A block weighs less than 2^53, which float64 holds; a row does not.
    cumulative = weight.sum(dim=2, dtype=torch.float64).long().cumsum(dim=1)
    target = target_of(cumulative[:, -1], uniform).unsqueeze(1)
    block = torch.searchsorted(cumulative, target, right=True)
    before = cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0)
    inside = weight.gather(1, block.unsqueeze(2).expand(-1, 1, BLOCK_TOKENS)).squeeze(1)
    offset = torch.searchsorted(inside.long().cumsum(dim=1), target.sub_(before), right=True)
    return block.mul_(BLOCK_TOKENS).add_(offset).squeeze(1)


def probabilities_of(shifted: torch.Tensor) -> torch.Tensor:
    """Return the distribution that a draw from these logits uses; the same in any batch.

    Shapes: shifted [K, V] float32, row maximum 0 -> [K, V] float64
    """
    weight = weights(shifted)
    total = weight.sum(dim=1, keepdim=True, dtype=torch.int64)  # exact in any order
    return weight.double().div_(total)


def draw_weighted(
    weight: torch.Tensor, uniform: torch.Tensor, otherwise: torch.Tensor
) -> torch.Tensor:
    """Return a token per row by the inverse of its cumulative weights, `otherwise` for rows of 0.

    Shapes: weight [K, V], uniform [K] float64, otherwise [K] int64 -> [K] int64
    """
    cumulative = weight.double().cumsum(dim=1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(total * uniform, below)  # so that the result has a weight above 0
    found = torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)
    return torch.where(total > 0, found, otherwise)


def _padded_weights(shifted: torch.Tensor) -> torch.Tensor:
    """Return weights in blocks, zeros at the end. Shapes: [S, V] -> [S, B, BLOCK_TOKENS]"""
    num_rows, vocab = shifted.shape
    num_blocks = -(-vocab // BLOCK_TOKENS)
    padded = shifted.new_zeros((num_rows, num_blocks * BLOCK_TOKENS))
    padded[:, :vocab] = weights(shifted)
    return padded.view(num_rows, num_blocks, BLOCK_TOKENS)
