"""SLRU: reused blocks outlive those that were written and never requested.

New blocks are on trial; one that is used again is protected. The least recently used of those on
trial goes first, so a long prompt that comes once drives out little that others share. Of the
protected, which are at most four fifths of all, the least recently used goes on trial again.
Source: Karedla, Love, Wherry, "Caching strategies to improve disk system performance", 1994.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from dovetail.interfaces.kv_eviction import KVEviction
from dovetail.interfaces.plugin import Info

PROTECTED_SHARE = 0.8


class SLRU(KVEviction):
    """Two orders, of those on trial and of the protected, the last used last in each."""

    info = Info(summary="the least recently used of the blocks that were not used again go")

    def __init__(self, options: Any, limit: int) -> None:
        del options
        self._limit = limit
        self._most_protected = max(0, min(int(PROTECTED_SHARE * limit), limit - 1))
        self._on_trial: OrderedDict[bytes, None] = OrderedDict()
        self._protected: OrderedDict[bytes, None] = OrderedDict()

    def has(self, key: bytes) -> bool:
        """Return whether a block is stored."""
        return key in self._protected or key in self._on_trial

    def add(self, key: bytes) -> list[bytes]:
        """Put a new key on trial, protect an existing one; return evicted keys. Mutates: self"""
        if not self._limit:
            return []
        is_kept = self.has(key)
        self.discard(key)
        if is_kept:
            self._protected[key] = None
            if len(self._protected) > self._most_protected:
                self._on_trial[self._protected.popitem(last=False)[0]] = None
        else:
            self._on_trial[key] = None
        num_over = len(self._protected) + len(self._on_trial) - self._limit
        return [self._on_trial.popitem(last=False)[0] for _ in range(num_over)]

    def discard(self, key: bytes) -> None:
        """Forget a key. Mutates: self"""
        self._protected.pop(key, None)
        self._on_trial.pop(key, None)
