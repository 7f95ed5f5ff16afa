"""DraftBlocks: which KV blocks are also filled in a drafter's cache.

The drafter skips rows that want no drafts, so their blocks lack its keys. A request that hits such
a block by prefix computes them then, or goes without if that takes hidden states that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.interfaces.data.step import KVLayout, RowStep
from dovetail.runner.rows.block_table import BlockTable

NULL_BLOCK = 0


class DraftBlocks:
    """The blocks of the model's first KV group, and of the host. The null block is never read."""

    def __init__(self, layout: KVLayout, table: BlockTable) -> None:
        self._is_filled = np.zeros(layout.num_blocks, dtype=bool)
        self._is_filled[NULL_BLOCK] = True
        self._on_host = np.zeros(layout.num_host_blocks, dtype=bool)
        self._table = table
        self._noted = np.zeros(len(table.ids), dtype=np.int64)

    def begin(self, row: int, blocks: Sequence[int], num_cached: int) -> int:
        """Return how many leading tokens of a new row, out of `num_cached`, the drafter has; blocks
        past `num_cached` are marked empty. Mutates: self"""
        self._noted[row] = 0
        size = self._table.block_tokens
        found = self._is_filled[list(blocks[: num_cached // size])]
        holes = np.flatnonzero(~found)
        self._empty(blocks[-(-num_cached // size) :])
        return size * (int(holes[0]) if holes.size else len(found))

    def take(self, steps: Iterable[RowStep]) -> None:
        """Mark the blocks that rows get with a step as empty. Mutates: self"""
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
        """Note that the drafter begins after `num_tokens` tokens of a row, whatever it has computed
        before them. Mutates: self"""
        self._noted[row] = -(-num_tokens // self._table.block_tokens)

    def swap(self, out: Iterable[tuple[int, int]], back: Iterable[tuple[int, int]]) -> None:
        """Note copies to the host, (block, host block), then copies back, (host block, block).
        Mutates: self"""
        for block, host in out:
            self._on_host[host] = self._is_filled[block]
        for host, block in back:
            self._is_filled[block] = self._on_host[host]

    def _empty(self, blocks: Sequence[int]) -> None:
        self._is_filled[[block for block in blocks if block != NULL_BLOCK]] = False
