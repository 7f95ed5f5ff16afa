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
            own = np.flatnonzero(row != -np.inf)  # NaN is left too
            if not 0 < len(own) * FEW <= len(row):
                return None
            ids.append(own)
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
