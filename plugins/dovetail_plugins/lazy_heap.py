"""LazyHeap: items in the order of keys that change.

An item whose key grows stays in its place until it comes to the front, and costs nothing before.
One whose key gets smaller is entered again; its old entry is dropped when it comes to the front.
Source: Minoux, Accelerated greedy algorithms for maximizing submodular set functions (1978).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
SPARE_ENTRIES = 64
"""Old entries that a heap of few items may have."""


class LazyHeap(Generic[Item]):
    """Hashable items; `key` returns an item's key of this moment. Items with equal keys must be
    comparable."""

    def __init__(self, key: Callable[[Item], Any]) -> None:
        self._key = key
        self._entered: dict[Item, Any] = {}
        """The key of each item's entry: its key of this moment, or a smaller one."""
        self._heap: list[tuple[Any, Item]] = []

    def __len__(self) -> int:
        return len(self._entered)

    def __contains__(self, item: object) -> bool:
        return item in self._entered

    def put(self, item: Item) -> None:
        """Add an item, or note that its key may have got smaller: O(log n). Mutates: self"""
        key = self._key(item)
        if item in self._entered and self._entered[item] <= key:
            return
        self._entered[item] = key
        if len(self._heap) > 2 * len(self._entered) + SPARE_ENTRIES:
            self._heap = [(one, other) for other, one in self._entered.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (key, item))

    def discard(self, item: Item) -> None:
        """Take an item out. Mutates: self"""
        del self._entered[item]

    def first(self) -> Item:
        """Return the item with the smallest key. Mutates: old entries. Raises: IndexError"""
        heap = self._heap
        while True:
            entered, item = heap[0]
            if self._entered.get(item) is not entered:
                heappop(heap)
                continue
            key = self._key(item)
            if key <= entered:
                return item
            self._entered[item] = key
            heapreplace(heap, (key, item))

    def firsts(self, count: int) -> list[Item]:
        """Return at most so many items, that with the smallest key first. Mutates: old entries"""
        if count == 1 and self:
            return [self.first()]
        found = dict[Item, None]()
        while len(found) < min(count, len(self)):
            found[self.first()] = None
            heappop(self._heap)
        for item in found:
            heappush(self._heap, (self._entered[item], item))
        return list(found)

    def in_order(self) -> list[Item]:
        """Return all items, that with the smallest key first."""
        return sorted(self._entered, key=self._key)
