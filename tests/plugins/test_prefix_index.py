"""The prefix-aware router's keys and index: the same prefixes and no others, within bounds."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from dovetail.interfaces.router import RoutedRequest, RouterFacts
from dovetail_plugins.routers._prefix_index import PrefixIndex
from dovetail_plugins.routers._prefix_keys import PrefixKeys, chunk_ends
from dovetail_plugins.routers.prefix_aware import PrefixAware


@pytest.fixture(scope="module")
def keys() -> PrefixKeys:
    return PrefixKeys(chunk_tokens=4, most_tokens=4096)


def prompt(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(150_000) for _ in range(count))


def common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


@pytest.mark.parametrize("length", [1, 4, 5, 64, 65, 700, 4096, 4097, 20_000])
def test_two_prompts_share_the_keys_of_what_they_share(keys: PrefixKeys, length: int) -> None:
    random = Random(length)
    whole = prompt(random, length)
    own = keys.of(whole, "")
    assert len(own) == sum(end < length for end in keys.ends)
    assert len(set(own)) == len(own)
    for place in {0, length // 3, length - 1}:
        other = (*whole[:place], whole[place] + 1, *prompt(random, 50), *whole[place + 1 :])
        shared = sum(end <= place for end in keys.ends)
        assert common(own, keys.of(other, "")) == min(shared, len(own))


def test_zeros_count_and_so_does_the_salt(keys: PrefixKeys) -> None:
    zeros = keys.of((0,) * 41, "")
    assert len(set(zeros)) == len(zeros)
    assert not set(zeros) & set(keys.of((0,) * 41, "one")), "another salt shares nothing"
    assert keys.of((0,) * 41, "one") == keys.of((0,) * 41, "one")


def test_keys_are_secret() -> None:
    made = [PrefixKeys(chunk_tokens=4, most_tokens=64).of(range(64), "") for _ in range(2)]
    assert not set(made[0]) & set(made[1])


def test_chunks_are_never_longer_than_an_eighth_of_what_lies_before() -> None:
    ends = chunk_ends(64, 1 << 20)
    assert ends[:16] == [64 * (n + 1) for n in range(16)]
    assert all(b - a <= max(64, a / 8) for a, b in pairwise(ends))
    assert len(ends) < 100


def test_an_engine_forgets_the_oldest_first_and_what_is_forgotten_is_gone() -> None:
    index = PrefixIndex(3, ends=(4, 8, 16), cache_tokens=32, most_keys=100)
    index.note(0, [1, 2, 3])
    index.note(0, [1, 4])
    index.note(2, [1])
    assert index.found([1, 2, 3]) == [(16, 0b001), (4, 0b100)]
    index.note(0, [5, 6, 7])  # 36 tokens with the others: 3, the oldest, goes
    assert index.found([1, 2, 3]) == [(8, 0b001), (4, 0b100)]
    assert index.found([9, 2, 3]) == []
    index.forget(0)
    assert index.found([1, 2, 3]) == [(4, 0b100)]
    assert len(index) == 1
    index.forget(2)
    assert len(index) == 0 and index.found([1]) == []


class View:
    num_running = num_waiting = pending_tokens = 0
    kv_usage = 0.0

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("num_engines", [2, 40])
def test_a_long_prompt_goes_where_its_prefix_went(num_engines: int) -> None:
    facts = RouterFacts(num_engines=num_engines, block_tokens=16, cache_tokens=1 << 20, max_rows=8)
    router, random = PrefixAware(PrefixAware.Options(), facts), Random(1)
    views = [View(number) for number in range(num_engines)]
    for _ in range(20):
        first = prompt(random, random.randrange(200, 30_000))
        home = router.choose(RoutedRequest(first), views)
        assert router.choose(RoutedRequest(first + prompt(random, 500)), views) == home


def test_without_a_prefix_cache_no_key_is_made() -> None:
    facts = RouterFacts(num_engines=2, block_tokens=16, cache_tokens=0, max_rows=8)
    router = PrefixAware(PrefixAware.Options(), facts)
    views = [View(0), View(1)]
    assert {router.choose(RoutedRequest((1,) * 500), views) for _ in range(4)} == {0, 1}
