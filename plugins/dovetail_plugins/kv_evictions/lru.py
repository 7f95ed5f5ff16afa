"""LRU: the blocks that were used least recently go."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from dovetail.interfaces.kv_eviction import KVEviction
from dovetail.interfaces.plugin import Info


class LRU(KVEviction):
    """One order, the last used last."""

    info = Info(summary="the least recently used blocks go")

    def __init__(self, options: Any, limit: int) -> None:
        del options
        self._limit = limit
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def has(self, key: bytes) -> bool:
        """Return whether a block is stored."""
        return key in self._keys

    def add(self, key: bytes) -> list[bytes]:
        """Put a key last; return those that have to go for it. Mutates: self"""
        if not self._limit:
            return []
        self._keys[key] = None
        self._keys.move_to_end(key)
        return [self._keys.popitem(last=False)[0] for _ in range(len(self._keys) - self._limit)]

    def discard(self, key: bytes) -> None:
        """Forget a key. Mutates: self"""
        self._keys.pop(key, None)
