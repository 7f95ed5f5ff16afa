"""The definition of logprobs in torch."""

from __future__ import annotations

import numpy as np
import torch

from dovetail_kernels.sample.definition import weights

HEAD = 4
"""How many numbers precede a row's likeliest tokens."""


def reference(
    logits: torch.Tensor, tokens: torch.Tensor, num_top: int, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the numbers of each token's row.

    Shapes: logits [R, V], tokens [S] int64, rows [S] int64 or None -> [S, HEAD + 2 num_top] int64
    """
    logits = (logits if rows is None else logits[rows]).float() + 0.0  # -0 becomes 0
    chosen = logits.gather(1, tokens.unsqueeze(1))
    best = logits.amax(dim=1, keepdim=True)
    parts = [
        weights(logits - best).sum(dim=1, dtype=torch.int64).unsqueeze(1),
        (logits > chosen).sum(dim=1, keepdim=True) + 1,
        _bits(best),
        _bits(chosen),
    ]
    if num_top:
        ids = order_keys(logits).topk(num_top, dim=1).indices
        parts += [ids, _bits(logits.gather(1, ids))]
    return torch.cat(parts, dim=1)


def order_keys(logits: torch.Tensor) -> torch.Tensor:
    """Return numbers that order tokens by logit, equal ones by falling id. Shapes: [S, V] int64"""
    bits = (logits + 0.0).view(torch.int32)  # adding 0 makes -0 equal to 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    falling = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    return ordered.long().mul_(1 << 32).add_(falling)


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of floats. Shapes: [..] float32 -> the same int64"""
    return values.contiguous().view(torch.int32).long()


def best_of(numbers: np.ndarray) -> np.ndarray:
    """Return rows' largest logits, NaN if a row has one. Shapes: [S, HEAD + 2 n] -> [S]"""
    return floats(numbers[:, 2])


def floats(numbers: np.ndarray) -> np.ndarray:
    """Return the floats with these integers' bits. Shapes: [..] int64 -> the same float64"""
    return numbers.astype(np.int32).view(np.float32).astype(np.float64)
