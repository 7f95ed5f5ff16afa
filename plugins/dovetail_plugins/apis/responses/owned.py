"""OwnedObjects: what clients keep in the memory of one process, bounded in bytes.

Each object belongs to an owner. When room is needed, the owner that holds most gives up what it
used longest ago, and nobody gives up what lies within its share, an equal part of the room: one
client cannot push out what others keep, not even with what may not go yet.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

OVERHEAD_BYTES = 512
"""What an object takes beside the bytes of its content."""


class Owned(Protocol):
    """An object with an owner."""

    @property
    def owner(self) -> str:
        """Return the mark of the key that it belongs to."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its content as it is now."""


Kept = TypeVar("Kept", bound=Owned)


class OwnedObjects(Generic[Kept]):
    """Objects by id. Those for which `may_go` is false are never given up."""

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
        """Return the object of this id, whoever owns it."""
        return self.get(name, self._owners.get(name, ""))

    def get(self, name: str, owner: str) -> Kept | None:
        """Return an owner's object; None where it has none of this id."""
        mine = self._by_owner.get(owner)
        return None if mine is None else mine.get(name)

    def of(self, owner: str) -> list[Kept]:
        """Return an owner's objects, the one used longest ago first."""
        return list(self._by_owner.get(owner, {}).values())

    def has(self, name: str, kept: Kept) -> bool:
        """Return whether this very object is here."""
        return self.get(name, kept.owner) is kept

    def keep(self, name: str, kept: Kept) -> None:
        """Keep an object, or count it again after it has changed, and make room. Mutates: self"""
        self._owners[name] = kept.owner
        self._by_owner.setdefault(kept.owner, OrderedDict())[name] = kept
        size = kept.num_bytes + OVERHEAD_BYTES
        self._bytes_of[kept.owner] += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        while self._bytes_of.total() > self._max_bytes and (victim := self._victim()) is not None:
            self.drop(victim)

    def touch(self, name: str) -> None:
        """Count an object as the one its owner used last. Mutates: self"""
        self._by_owner[self._owners[name]].move_to_end(name)

    def drop(self, name: str) -> None:
        """Forget an object, if it is here. Mutates: self"""
        owner = self._owners.pop(name, None)
        if owner is None:
            return
        del self._by_owner[owner][name]
        self._bytes_of[owner] -= self._sizes.pop(name)
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._bytes_of[owner]

    def drop_oldest(self, is_old: Callable[[Kept], bool]) -> None:
        """Forget of each owner's objects the first ones that are old. Mutates: self"""
        for mine in list(self._by_owner.values()):
            able = ((name, kept) for name, kept in mine.items() if self._may_go(kept))
            for name, _ in list(takewhile(lambda one: is_old(one[1]), able)):
                self.drop(name)

    def _victim(self) -> str | None:
        """Return what goes next: of the owner that holds most, what it used longest ago; nothing of
        an owner that holds no more than its share."""
        share = self._max_bytes / len(self._by_owner)
        for owner, num_bytes in self._bytes_of.most_common():
            if num_bytes <= share:
                return None
            for name, kept in self._by_owner[owner].items():
                if self._may_go(kept):
                    return name
        return None
