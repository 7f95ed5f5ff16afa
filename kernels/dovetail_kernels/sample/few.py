"""FewLeft: the tokens of rows in which filters have left few, as a narrow matrix.

What depends on logits alone has the same outcome on it, since sums of weights are exact. On a CPU
alone: it looks at each row on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

FEW = 8
"""Few is one token in this many, or fewer."""
BLOCK_TOKENS = 128


class FewLeft:
    """`logits` [S, W] are the tokens left, in order of their ids, W of the row with most of them;
    the others' ends are -inf."""

    def __init__(self, whole: np.ndarray, ids: Sequence[np.ndarray]) -> None:
        self._whole, self._ids = whole, ids
        narrow = np.full((len(ids), max(map(len, ids))), -np.inf, dtype=whole.dtype)
        for row, own in enumerate(ids):
            narrow[row, : len(own)] = whole[row, own]
        self.logits = torch.from_numpy(narrow)

    @classmethod
    def of(cls, logits: torch.Tensor) -> FewLeft | None:
        """Return the tokens above -inf of each row; None: many are left in a row, none is in
        another, or the logits are not on a CPU. Shapes: logits [S, V]"""
        if logits.device.type != "cpu":
            return None
        whole, ids = logits.numpy(), []
        for row in whole:
            is_left = row != -np.inf  # NaN is left too
            if not 0 < np.count_nonzero(is_left) * FEW <= len(row):
                return None
            ids.append(np.flatnonzero(is_left))
        return cls(whole, ids)

    def put_back(self, logits: torch.Tensor) -> None:
        """Write logits of these tokens to their places. Shapes: logits [S, W]. Mutates: the logits
        that this was made of"""
        narrow = logits.numpy()
        for row, own in enumerate(self._ids):
            self._whole[row, own] = narrow[row, : len(own)]

    def token_ids(self, places: torch.Tensor) -> torch.Tensor:
        """Return the tokens at these places. Shapes: [S] -> [S] int64"""
        pairs = zip(self._ids, places.tolist(), strict=True)
        return torch.tensor([int(own[place]) for own, place in pairs])


def largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return the largest logits of each row, in order. Shapes: [S, V] -> [S, count]

    On a CPU the `count` largest maxima of blocks come first: the smallest of them is a lower bound,
    which few tokens reach.
    """
    num_blocks = logits.shape[1] // BLOCK_TOKENS
    if logits.device.type != "cpu" or 2 * count > num_blocks:
        return logits.topk(count, dim=1).values
    found = np.empty((len(logits), count), dtype=np.float32)
    for row, own in enumerate(logits.numpy()):
        maxima = own[: num_blocks * BLOCK_TOKENS].reshape(num_blocks, BLOCK_TOKENS).max(axis=1)
        bound = np.partition(maxima, num_blocks - count)[num_blocks - count]
        left = own[own >= bound]
        if not count <= len(left) <= len(own) // FEW:
            return logits.topk(count, dim=1).values
        found[row] = np.sort(left)[: -count - 1 : -1]
    return torch.from_numpy(found)
