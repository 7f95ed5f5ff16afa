"""Pins: prefix blocks that stay cached for a requested time.

A pin is an additional owner of a block, so that it is not evicted. If running requests need the
room, pins are dropped, in order of expiry. So a pin protects a prefix from other cached prefixes,
but never prevents a request from running.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from dovetail.engine.kv.block_pool import BlockPool


class Pins:
    """The pinned blocks of a pool. Times are seconds of one clock."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._until_s: dict[int, float] = {}
        self._ends: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._until_s)

    def __contains__(self, block: int) -> bool:
        return block in self._until_s

    def hold(self, blocks: Iterable[int], until_s: float) -> None:
        """Pin blocks until `until_s`, or longer if already pinned. Mutates: self, the pool"""
        for block in blocks:
            known = self._until_s.get(block)
            if known is None:
                self._pool.share((block,))
            elif known >= until_s:
                continue
            self._until_s[block] = until_s
            heapq.heappush(self._ends, (until_s, block))

    def expire(self, now_s: float) -> None:
        """Drop expired pins. Mutates: self, the pool"""
        while self._ends and self._ends[0][0] <= now_s:
            self._drop_first()

    def make_room(self, num_free: int) -> None:
        """Drop pins until `num_free` blocks of the pool are free, or none is left. Mutates: self,
        the pool"""
        while self._ends and self._pool.num_free < num_free:
            self._drop_first()

    def clear(self) -> None:
        """Drop all pins. Mutates: self, the pool"""
        while self._ends:
            self._drop_first()

    def _drop_first(self) -> None:
        until_s, block = heapq.heappop(self._ends)
        if self._until_s.get(block) == until_s:  # else it has been pinned for longer since
            del self._until_s[block]
            self._pool.release((block,))
