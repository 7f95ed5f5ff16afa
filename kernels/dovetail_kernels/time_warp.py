"""Dynamic time warping: the path of most attention through tokens and the rows they attend to.

Sources: Radford et al., 2022, for the normalized and smoothed attention; Sakoe and Chiba, 1978.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

SMOOTHED_ROWS = 7
"""Width of the median filter over rows of an encoding."""
LEAST_DEVIATION = 1e-10
STAYS, MOVES, BOTH = 0, 1, 2
"""How a path reaches (token, row): by the next row, by the next token, by both."""


def prominence(seen: torch.Tensor) -> torch.Tensor:
    """Return how many standard deviations each token's attention to a row is above the mean over
    tokens, smoothed over rows. Shapes: [h, T, rows] -> [h, T, rows]"""
    deviation, mean = torch.std_mean(seen, dim=1, keepdim=True, correction=0)
    deviations = (seen - mean) / deviation.clamp_min(LEAST_DEVIATION)
    pad = SMOOTHED_ROWS // 2
    if deviations.shape[-1] <= pad:
        return deviations
    padded = F.pad(deviations, (pad, pad), mode="reflect")
    return padded.unfold(-1, SMOOTHED_ROWS, 1).median(dim=-1).values


def path(gain: np.ndarray) -> np.ndarray:
    """Return the row at which the best path through tokens and rows reaches each token. The path
    goes from the first token and row to the last, each move by one token, one row, or both.
    Shapes: gain [T, rows] -> [T] int64

    Cells of one diagonal depend only on the two before, so each diagonal is vectorized.
    """
    num_tokens, num_rows = gain.shape
    cost = np.full((num_tokens + 1, num_rows + 1), np.inf)
    cost[0, 0] = 0.0
    came = np.full((num_tokens + 1, num_rows + 1), STAYS, dtype=np.int8)
    for diagonal in range(2, num_tokens + num_rows + 1):
        tokens = np.arange(max(1, diagonal - num_rows), min(num_tokens, diagonal - 1) + 1)
        rows = diagonal - tokens
        both, moves = cost[tokens - 1, rows - 1], cost[tokens - 1, rows]
        stays = cost[tokens, rows - 1]
        how = np.where((both < moves) & (both < stays), BOTH, STAYS)
        how = np.where((moves < both) & (moves < stays), MOVES, how)
        best = np.choose(how, (stays, moves, both))
        cost[tokens, rows] = best - gain[tokens - 1, rows - 1]
        came[tokens, rows] = how
    firsts = np.zeros(num_tokens, dtype=np.int64)
    token, place = num_tokens, num_rows
    while token > 0:
        firsts[token - 1] = place - 1
        if token == 1 and place == 1:
            break
        step = MOVES if place == 1 else STAYS if token == 1 else int(came[token, place])
        token -= step in (MOVES, BOTH)
        place -= step in (STAYS, BOTH)
    return firsts
