"""KVEviction: no more than its limit, no silent loss, the same for the same calls."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dovetail.interfaces.kv_eviction import KVEviction
from dovetail_testing.contract import default_options

LIMITS = (0, 1, 2, 10, 100)
NUM_CALLS = 2000


def new_eviction(plugin: Any, limit: int) -> KVEviction:
    """Return a new eviction with its default options."""
    eviction: KVEviction = plugin(default_options(plugin), limit)
    return eviction


def keys(number: int, seed: int = 0) -> list[bytes]:
    """Return keys, some of which occur often."""
    chance = random.Random(seed)
    return [bytes(32) + int(chance.expovariate(1 / 60)).to_bytes(4, "big") for _ in range(number)]


class TestKVEviction:
    """Clauses of evictions."""

    kind = "kv_eviction"

    @pytest.mark.parametrize("limit", LIMITS)
    def test_keeps_no_more_than_its_limit(self, plugin: Any, limit: int) -> None:
        """However many blocks come, at most `limit` are stored."""
        eviction, requested = new_eviction(plugin, limit), keys(NUM_CALLS)
        for number, key in enumerate(requested):
            eviction.add(key)
            if number % 50 == 0:
                assert sum(map(eviction.has, set(requested))) <= limit

    @pytest.mark.parametrize("limit", LIMITS)
    def test_says_what_goes(self, plugin: Any, limit: int) -> None:
        """A block is stored exactly from its addition until it is reported as evicted."""
        eviction, requested, stored = new_eviction(plugin, limit), keys(NUM_CALLS), set[bytes]()
        for number, key in enumerate(requested):
            evicted = eviction.add(key)
            assert len(set(evicted)) == len(evicted) and set(evicted) <= stored | {key}
            stored = (stored | {key} if limit else stored) - set(evicted)
            if number % 50 == 0:
                assert {one for one in set(requested) if eviction.has(one)} == stored

    @pytest.mark.parametrize("limit", LIMITS[1:])
    def test_a_new_block_is_kept(self, plugin: Any, limit: int) -> None:
        """A block that has just come is there."""
        eviction = new_eviction(plugin, limit)
        for key in keys(NUM_CALLS):
            eviction.add(key)
            assert eviction.has(key)

    def test_discarded_blocks_are_gone(self, plugin: Any) -> None:
        """A block that was discarded makes room; one that is not there is ignored."""
        eviction = new_eviction(plugin, 2)
        for key in (b"a", b"b"):
            eviction.add(key)
        eviction.discard(b"a")
        eviction.discard(b"c")
        assert not eviction.has(b"a") and eviction.has(b"b")
        assert eviction.add(b"d") == []

    def test_is_deterministic(self, plugin: Any) -> None:
        """Two that are called alike decide alike."""
        one, other, chance = new_eviction(plugin, 20), new_eviction(plugin, 20), random.Random(1)
        for key in keys(NUM_CALLS):
            if chance.random() < 0.1:
                one.discard(key)
                other.discard(key)
            else:
                assert one.add(key) == other.add(key)
