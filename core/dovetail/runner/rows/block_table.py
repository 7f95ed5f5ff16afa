"""BlockTable: the KV blocks of each row in one KV group, as one host array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class BlockTable:
    """Row r's blocks are `ids[r, : counts[r]]`; the entries after them are 0.

    `notes_changes`: additions are recorded for a copy elsewhere, until taken. With `is_cross` the
    blocks hold encodings, not tokens of the row.
    """

    def __init__(
        self, max_rows: int, max_blocks: int, block_tokens: int, *, is_cross: bool = False
    ) -> None:
        self.is_cross = is_cross
        self.ids = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self.counts = np.zeros(max_rows, dtype=np.int64)
        self.block_tokens = block_tokens
        self.notes_changes = False
        self._changes: list[tuple[int, int, int]] = []

    def fill_row(self, row: int, blocks: Sequence[int]) -> None:
        """Replace a row's blocks. Mutates: self"""
        self.clear_row(row)
        self.append(row, blocks)

    def append(self, row: int, blocks: Sequence[int]) -> None:
        """Add blocks at a row's end. Mutates: self"""
        start = int(self.counts[row])
        end = start + len(blocks)
        assert end <= self.ids.shape[1], f"row {row} was given {end} blocks, more than it can use"
        self.ids[row, start:end] = blocks
        self.counts[row] = end
        if self.notes_changes and end > start:
            self._changes.append((row, start, end))

    def take_changes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows, places and blocks that were added since the last call.

        A place may occur twice, always with its current block; removals are not included.
        Shapes: [C] int64, [C] int64, [C] int32. Mutates: self
        """
        changes, self._changes = self._changes, []
        if not changes:
            nothing = np.zeros(0, dtype=np.int64)
            return nothing, nothing, nothing.astype(np.int32)
        rows = np.concatenate([np.full(end - start, row) for row, start, end in changes])
        places = np.concatenate([np.arange(start, end) for _, start, end in changes])
        return rows, places, self.ids[rows, places]

    def clear_row(self, row: int) -> None:
        """Remove all blocks of a row. Mutates: self"""
        self.ids[row, : self.counts[row]] = 0
        self.counts[row] = 0

    def slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the cache slots of tokens. Shapes: rows, positions [T] -> [T] int64"""
        block, offset = np.divmod(positions, self.block_tokens)
        slots: np.ndarray = self.ids[rows, block].astype(np.int64) * self.block_tokens + offset
        return slots

    def gather(self, rows: np.ndarray, max_tokens: int) -> np.ndarray:
        """Return the rows' tables, wide enough for max_tokens. Shapes: [R] -> [R, B] int32"""
        width = -(-max_tokens // self.block_tokens)
        return self.ids[rows, :width]
