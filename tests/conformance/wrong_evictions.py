"""Evictions for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

import random
from typing import Any

from dovetail.interfaces.kv_eviction import KVEviction
from dovetail.interfaces.plugin import Info


class RightEviction(KVEviction):
    """The first that came goes first."""

    info = Info(summary="first in, first out")

    def __init__(self, options: Any, limit: int) -> None:
        self.limit = limit
        self.keys: list[bytes] = []

    def has(self, key: bytes) -> bool:
        return key in self.keys

    def add(self, key: bytes) -> list[bytes]:
        if not self.limit or key in self.keys:
            return []
        self.keys.append(key)
        return [self.keys.pop(self.place()) for _ in range(len(self.keys) - self.limit)]

    def place(self) -> int:
        return 0

    def discard(self, key: bytes) -> None:
        if key in self.keys:
            self.keys.remove(key)


class HoardingEviction(RightEviction):
    def __init__(self, options: Any, limit: int) -> None:
        super().__init__(options, limit + 1)


class SecretiveEviction(RightEviction):
    def add(self, key: bytes) -> list[bytes]:
        return super().add(key)[:0]


class ShutEviction(RightEviction):
    def place(self) -> int:
        return -1


class StubbornEviction(RightEviction):
    def discard(self, key: bytes) -> None:
        return None


class MoodyEviction(RightEviction):
    def place(self) -> int:
        return random.randrange(len(self.keys) - 1)
