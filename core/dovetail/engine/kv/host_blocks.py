"""HostBlockAccounting: host memory blocks, of preempted requests or from an external store.

Contains only numbers, like the block pool: host block ids, their owners and a free list. A plan
copies to the host before it copies from there. So a host block freed by a plan that reads it may be
reused by any later plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.kv.block_pool import NULL_BLOCK

Copies = tuple[tuple[int, int], ...]
"""Pairs (source, destination)."""


class Swapped:
    """The host blocks of one request: `tables[g][i]` has block i of group g, for the first
    `num_tokens` tokens. The first `num_nulls[g]` have left the group's window and are not stored.

    `load` is the first number of a load from an external store. Its first `num_missing` tokens were
    in the prefix index; if they are evicted, the load is useless.
    """

    __slots__ = ("load", "num_missing", "num_nulls", "num_tokens", "tables")

    def __init__(
        self,
        tables: list[list[int | None]],
        num_tokens: int,
        *,
        num_nulls: list[int] | None = None,
        num_missing: int = 0,
        load: int | None = None,
    ) -> None:
        self.tables = tables
        self.num_tokens = num_tokens
        self.num_missing = num_missing
        self.load = load
        if num_nulls is None:
            num_nulls = [sum(block is None for block in table) for table in tables]
        self.num_nulls = num_nulls

    def blocks(self) -> list[int]:
        """Return the host blocks of all groups."""
        return [block for table in self.tables for block in table if block is not None]


class HostBlockAccounting:
    """Host blocks 0 .. num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._swapped: dict[str, Swapped] = {}
        self._loaded: dict[str, Swapped] = {}
        self._released: list[int] = []

    @property
    def num_requests(self) -> int:
        """Return how many preempted requests have host blocks."""
        return len(self._swapped)

    @property
    def usage(self) -> float:
        """Return the fraction of host blocks in use, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks if self.num_blocks else 0.0

    def find(self, request_id: str) -> Swapped | None:
        """Return the host blocks of a request, or the blocks loaded for it."""
        return self._swapped.get(request_id) or self._loaded.get(request_id)

    def adopt(self, request_id: str, loaded: Swapped) -> None:
        """Register the blocks loaded for a request that owns none yet. Mutates: self"""
        assert self.find(request_id) is None, f"{request_id} has host blocks already"
        self._loaded[request_id] = loaded

    def take_released(self) -> list[int]:
        """Return the loads that were released since the last call. Mutates: self"""
        released, self._released = self._released, []
        return released

    def put(
        self, request_id: str, tables: Sequence[Sequence[int]], num_tokens: int
    ) -> Copies | None:
        """Take a host block for each block of a request; return the copies (block, host block).

        None, with nothing changed, if too few are free.
        """
        assert request_id not in self._swapped, f"{request_id} was swapped out twice"
        count = sum(block != NULL_BLOCK for table in tables for block in table)
        if count > len(self._free):
            return None
        host_tables = [
            [None if b == NULL_BLOCK else self._free.pop() for b in table] for table in tables
        ]
        self._swapped[request_id] = Swapped(host_tables, num_tokens)
        return tuple(
            (block, host)
            for table, hosts in zip(tables, host_tables, strict=True)
            for block, host in zip(table, hosts, strict=True)
            if host is not None
        )

    def drop(self, request_id: str) -> None:
        """Free a request's host blocks, if any."""
        loaded = self._loaded.pop(request_id, None)
        if loaded is not None and loaded.load is not None:
            self._released.append(loaded.load)
        swapped = self._swapped.pop(request_id, None)
        if swapped is not None:
            # The lowest are taken first: adjacent blocks are copied together.
            self._free.extend(swapped.blocks())
            self._free.sort(reverse=True)

    def check_invariants(self) -> None:
        """Raise AssertionError if a host block is lost or has two owners."""
        owned = [block for swapped in self._swapped.values() for block in swapped.blocks()]
        every = sorted([*owned, *self._free])
        assert every == list(range(self.num_blocks)), "host blocks are lost or used twice"
