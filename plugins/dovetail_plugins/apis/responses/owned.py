"""OwnedObjects: clients' objects in the memory of one process, limited in bytes.

Each object belongs to an owner. If room is needed, the owner with the most bytes loses its least
recently used object. Objects within an owner's equal share of the room are safe: one client cannot
evict what others stored, not even with objects that may not be evicted yet.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

OVERHEAD_BYTES = 512
"""The size of an object in addition to its content."""


class Owned(Protocol):
    """An object with an owner."""

    @property
    def owner(self) -> str:
        """Return the owner's id, which identifies a key."""

    @property
    def num_bytes(self) -> int:
        """Return the current size of its content in bytes."""


Kept = TypeVar("Kept", bound=Owned)


class OwnedObjects(Generic[Kept]):
    """Objects by id. Objects for which `may_go` is false are never evicted."""

    def __init__(self, max_bytes: int, may_go: Callable[[Kept], bool] = lambda kept: True) -> None:
        self._max_bytes = max_bytes
        self._may_go = may_go
        self._owners: dict[str, str] = {}
        self._by_owner: dict[str, OrderedDict[str, Kept]] = {}
        self._sizes: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, name: str) -> Kept | None:
        """Return the object with this id, regardless of its owner."""
        return self.get(name, self._owners.get(name, ""))

    def get(self, name: str, owner: str) -> Kept | None:
        """Return an owner's object; None if it has none with this id."""
        mine = self._by_owner.get(owner)
        return None if mine is None else mine.get(name)

    def of(self, owner: str) -> list[Kept]:
        """Return an owner's objects, least recently used first."""
        return list(self._by_owner.get(owner, {}).values())

    def has(self, name: str, stored: Kept) -> bool:
        """Return whether exactly this object is stored."""
        return self.get(name, stored.owner) is stored

    def keep(self, name: str, stored: Kept) -> None:
        """Store an object, or update the size of a changed one, and evict others if needed.
        Mutates: self"""
        self._owners[name] = stored.owner
        self._by_owner.setdefault(stored.owner, OrderedDict())[name] = stored
        size = stored.num_bytes + OVERHEAD_BYTES
        self._bytes_of[stored.owner] += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        while self._bytes_of.total() > self._max_bytes and (victim := self._victim()) is not None:
            self.drop(victim)

    def touch(self, name: str) -> None:
        """Mark an object as its owner's most recently used. Mutates: self"""
        self._by_owner[self._owners[name]].move_to_end(name)

    def drop(self, name: str) -> None:
        """Remove an object, if it is stored. Mutates: self"""
        owner = self._owners.pop(name, None)
        if owner is None:
            return
        del self._by_owner[owner][name]
        self._bytes_of[owner] -= self._sizes.pop(name)
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._bytes_of[owner]

    def drop_oldest(self, is_old: Callable[[Kept], bool]) -> None:
        """Remove each owner's leading objects that are old. Mutates: self"""
        for mine in list(self._by_owner.values()):
            able = ((name, stored) for name, stored in mine.items() if self._may_go(stored))
            for name, _ in list(takewhile(lambda one: is_old(one[1]), able)):
                self.drop(name)

    def _victim(self) -> str | None:
        """Return the id to evict next: the largest owner's least recently used object. None if that
        owner is within its share."""
        share = self._max_bytes / len(self._by_owner)
        for owner, num_bytes in self._bytes_of.most_common():
            if num_bytes <= share:
                return None
            for name, stored in self._by_owner[owner].items():
                if self._may_go(stored):
                    return name
        return None
