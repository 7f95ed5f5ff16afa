"""LazyHeap: against a sorted list, with keys that grow and shrink, and bounded memory."""

from __future__ import annotations

import random

import pytest

from dovetail_plugins.lazy_heap import SPARE_ENTRIES, LazyHeap


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_is_first_whatever_moves(seed: int) -> None:
    chance, keys = random.Random(seed), dict[int, float]()
    heap = LazyHeap(keys.__getitem__)
    for _ in range(2000):
        item, change = chance.randrange(30), chance.random()
        if item not in keys:
            keys[item] = change
            heap.put(item)
        elif change < 0.2:
            heap.discard(item)
            del keys[item]
        elif change < 0.4:
            keys[item] -= change
            heap.put(item)
        else:
            keys[item] += change
            if change < 0.6:  # a larger key may be noted or not
                heap.put(item)
        wanted = sorted(keys, key=keys.__getitem__)
        assert len(heap) == len(keys) and (item in heap) == (item in keys)
        assert heap.in_order() == wanted
        count = chance.randrange(1, 5)
        assert heap.firsts(count) == wanted[:count]
        if keys:
            assert heap.first() == wanted[0]


def test_old_entries_are_bounded() -> None:
    keys = {0: 0.0, 1: 0.0}
    heap = LazyHeap(keys.__getitem__)
    heap.put(0)
    for _ in range(5000):  # never at the front, so no old entry is dropped there
        keys[1] = 5.0
        heap.put(1)
        heap.discard(1)
    assert len(heap._heap) <= 2 + SPARE_ENTRIES + 1


def test_an_empty_heap_has_no_first() -> None:
    heap = LazyHeap(int)
    with pytest.raises(IndexError):
        heap.first()
    assert heap.firsts(3) == []
