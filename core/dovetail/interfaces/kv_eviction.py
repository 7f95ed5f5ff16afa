"""KVEviction: which blocks stay in host memory or in a folder, once there are more than have room.

The engine's index of a connector and every rank's store make one each and are given the same blocks
in the same order, so that all of them keep the same.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin


class KVEviction(Plugin):
    """The keys of at most `limit` blocks of equal size (0: none is kept). One thread at a time.

    What it decides follows from the calls alone: no clock, no chance.
    """

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, limit: int) -> None:
        """Begin with nothing."""

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Return whether a block is kept. Changes nothing."""

    @abstractmethod
    def add(self, key: bytes) -> list[bytes]:
        """Note that a block was written, or used where it is kept; return those that go for it. A
        new one is kept itself wherever one block has room. Mutates: self"""

    @abstractmethod
    def discard(self, key: bytes) -> None:
        """Forget a block; one that is not kept is ignored. Mutates: self"""
