"""Recent: which of many blocks were used most recently, as many as there is room for."""

from __future__ import annotations

from collections import OrderedDict


class Recent:
    """The most recently used keys of blocks of equal size. With a `limit` of 0 none is
    kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
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
