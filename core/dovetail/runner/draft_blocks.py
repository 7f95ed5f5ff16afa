"""DraftBlocks: which KV blocks hold a drafter's keys of all their tokens.

A row that wants no drafts is not computed by the drafter, and leaves blocks without its keys. Who
finds such a block by its prefix computes them then, or, where that takes hidden states that are
gone, goes without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.interfaces.step import KVLayout, RowStep
from dovetail.runner.block_table import BlockTable

NULL_BLOCK = 0


class DraftBlocks:
    """The blocks of the model's first KV group, and of the host. Of the null block nobody reads."""

    def __init__(self, layout: KVLayout, table: BlockTable) -> None:
        self._is_filled = np.zeros(layout.num_blocks, dtype=bool)
        self._is_filled[NULL_BLOCK] = True
        self._on_host = np.zeros(layout.num_host_blocks, dtype=bool)
        self._table = table
        self._noted = np.zeros(len(table.ids), dtype=np.int64)

    def begin(self, row: int, blocks: Sequence[int], num_cached: int) -> int:
        """Return how many leading tokens of a new row are filled, of so many that are cached; what
        is not cached is not filled. Mutates: self"""
        self._noted[row] = 0
        size = self._table.block_tokens
        found = self._is_filled[list(blocks[: num_cached // size])]
        holes = np.flatnonzero(~found)
        self._empty(blocks[-(-num_cached // size) :])
        return size * (int(holes[0]) if holes.size else len(found))

    def take(self, steps: Iterable[RowStep]) -> None:
        """Take in the blocks that rows get with a step. Mutates: self"""
        for step in steps:
            if step.new_blocks and step.new_blocks[0]:
                self._empty(step.new_blocks[0])

    def fill(self, rows: np.ndarray, limits: np.ndarray) -> None:
        """Note that the drafter has computed the first tokens of some rows. Shapes: [R], [R].
        Mutates: self"""
        counts = limits // self._table.block_tokens
        has_more = counts > self._noted[rows]
        if not has_more.any():
            return
        for row, count in zip(rows[has_more].tolist(), counts[has_more].tolist(), strict=True):
            self._is_filled[self._table.ids[row, self._noted[row] : count]] = True
            self._noted[row] = count

    def skip(self, row: int, num_tokens: int) -> None:
        """Note that the drafter begins behind so many tokens of a row, whatever it has computed of
        those before. Mutates: self"""
        self._noted[row] = -(-num_tokens // self._table.block_tokens)

    def swap(self, out: Iterable[tuple[int, int]], back: Iterable[tuple[int, int]]) -> None:
        """Note copies to the host, (block, host block), then those from there, (host block, block).
        Mutates: self"""
        for block, host in out:
            self._on_host[host] = self._is_filled[block]
        for host, block in back:
            self._is_filled[block] = self._on_host[host]

    def _empty(self, blocks: Sequence[int]) -> None:
        self._is_filled[[block for block in blocks if block != NULL_BLOCK]] = False
