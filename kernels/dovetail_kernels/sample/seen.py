"""SeenTokens: counts on a device of the tokens that rows with penalties have seen.

A row gets a line of the table at its first step, filled from the host's state. From then on the
kernels update it, and the host learns of tokens when a step is collected. Before torch operations
apply penalties instead, `settle` brings the host's state up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from dovetail_kernels.sample.penalties import Penalties

FEWEST_LINES = 4


class SeenTokens:
    """A line of V counts for each row with penalties that has drawn on the device.

    0: not seen; n: drawn n - 1 times (1: only in the prompt).
    """

    def __init__(self, penalties: Penalties, max_rows: int) -> None:
        self._penalties = penalties
        self._line = np.full(max_rows, -1, dtype=np.int64)
        self._free: list[int] = []
        self._table: torch.Tensor | None = None
        self._untold: dict[int, list[int]] = {}

    def lines(self, rows: np.ndarray, vocab: int, device: torch.device) -> np.ndarray:
        """Return each row's line, -1 without penalties; rows without a line get one.

        Shapes: rows [S] -> [S]
        Mutates: self
        """
        known = self._penalties.has(rows)
        fresh = rows[known & (self._line[rows] < 0)].tolist()
        if fresh:
            self._fill(fresh, vocab, device)
        return np.where(known, self._line[rows], -1)

    @property
    def table(self) -> torch.Tensor | None:
        """Return the lines. Shapes: [lines, V] int32"""
        return self._table

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        if self._line[row] >= 0:
            self._free.append(int(self._line[row]))
            self._line[row] = -1
        self._untold.pop(row, None)

    def note(self, row: int, token_ids: Sequence[int]) -> None:
        """Count tokens that the host already knows. Mutates: self"""
        if self._table is None or self._line[row] < 0:
            return
        ids, counts = np.unique(np.asarray(token_ids, dtype=np.int64), return_counts=True)
        line, device = self._table[int(self._line[row])], self._table.device
        at = on_device(ids, device)
        line[at] = line[at].clamp(min=1) + on_device(counts.astype(np.int32), device)

    def tell(self, row: int, token_id: int) -> None:
        """Queue a token that kernels have counted for the host's state. Mutates: self"""
        if self._line[row] >= 0:
            self._untold.setdefault(row, []).append(token_id)

    def settle(self, rows: Iterable[int]) -> None:
        """Bring the host's state of rows up to date and free their lines. Mutates: self"""
        for row in rows:
            token_ids = self._untold.get(row, [])
            self._penalties.record([row] * len(token_ids), token_ids)
            self.remove_row(row)

    def _fill(self, rows: list[int], vocab: int, device: torch.device) -> None:
        """Assign lines to rows and fill them from the host's state. Mutates: self"""
        if self._table is None or len(self._free) < len(rows):
            self._grow(len(rows), vocab, device)
        table = self._table
        assert table is not None
        for row in rows:
            self._line[row] = self._free.pop()
        lines = self._line[rows]
        tokens = [self._penalties.seen(row) for row in rows]
        sizes = [len(ids) for ids, _ in tokens]
        at = np.repeat(lines * vocab, sizes) + np.concatenate([ids for ids, _ in tokens])
        values = np.concatenate([counts for _, counts in tokens]).astype(np.int32) + 1
        table.index_fill_(0, on_device(lines, device), 0)
        table.view(-1)[on_device(at, device)] = on_device(values, device)

    def _grow(self, more: int, vocab: int, device: torch.device) -> None:
        """Make room for at least this many lines. Mutates: self"""
        old = self._table
        size = 0 if old is None else len(old)
        larger = max(2 * size, size + more, FEWEST_LINES)
        table = torch.zeros((larger, vocab), dtype=torch.int32, device=device)
        if old is not None:
            table[:size] = old
        self._free += range(size, larger)
        self._table = table


def on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return the array on a device, copied without waiting."""
    host = torch.from_numpy(array)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
