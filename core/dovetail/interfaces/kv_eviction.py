"""KVEviction: which blocks to evict from host memory or a folder when it is full.

The index and every rank's store of a connector each create one and pass it the same blocks in the
same order, so that all of them evict the same.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin


class KVEviction(Plugin):
    """Tracks the keys of at most `limit` blocks of equal size (0: none). One thread at a time.

    Decisions depend on the calls alone: no clock, no randomness.
    """

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, limit: int) -> None:
        """Start empty."""

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Return whether a block is stored. Changes nothing."""

    @abstractmethod
    def add(self, key: bytes) -> list[bytes]:
        """Note that a block was written, or used if it is stored; return the blocks to evict for
        it. With a `limit` above 0 a new block is always stored. Mutates: self"""

    @abstractmethod
    def discard(self, key: bytes) -> None:
        """Remove a block; one that is not stored is ignored. Mutates: self"""
