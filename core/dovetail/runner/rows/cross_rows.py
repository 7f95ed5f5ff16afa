"""CrossRows: how many encodings each row attends to, and which are not in the cache yet.

They are written once, with the first step of a row that has nothing cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.interfaces.data.media import encoder_rows
from dovetail.interfaces.data.step import NewRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCross:
    """The encodings of a step's rows. The step writes those in `keys` to `positions` of `rows`.

    Shapes: lens [R], rows and positions [W], all int64
    """

    lens: np.ndarray
    rows: np.ndarray
    positions: np.ndarray
    keys: Sequence[str] = ()


class CrossRows:
    """All rows of a batch."""

    def __init__(self, max_rows: int) -> None:
        self.lens = np.zeros(max_rows, dtype=np.int64)
        self._unwritten: dict[int, tuple[str, ...]] = {}

    def add_row(self, new: NewRow) -> None:
        """Note what a new row attends to. Mutates: self"""
        self.lens[new.row] = encoder_rows(new.parts)
        self._unwritten.pop(new.row, None)
        if not new.num_computed_tokens:
            self._unwritten[new.row] = tuple(p.key for p in new.parts if not p.runs)

    def take(self, rows: np.ndarray) -> StepCross:
        """Return what a step of these rows reads and writes. Shapes: rows [R]. Mutates: self"""
        fresh = [row for row in rows.tolist() if row in self._unwritten] if self._unwritten else []
        keys = [key for row in fresh for key in self._unwritten.pop(row)]
        counts = self.lens[fresh]
        positions = [np.arange(count) for count in counts.tolist()]
        return StepCross(
            lens=self.lens[rows],
            rows=np.repeat(np.array(fresh, dtype=np.int64), counts),
            positions=np.concatenate(positions) if positions else np.zeros(0, dtype=np.int64),
            keys=keys,
        )
