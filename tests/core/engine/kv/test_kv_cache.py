"""Block accounting of requests: room, sharing, windows, forgetting, and its own checker."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from dovetail.engine.kv import prefix_hash
from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.engine.request import Request
from dovetail.interfaces.data.media import PartPlace, PromptPart
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import CrossLayer, KVLayer
from support.inside import pool_of


def make_cache(
    num_blocks: int = 17, windows: Sequence[int | None] = (None,), prefix: bool = True
) -> KVCacheManager:
    layers = [
        KVLayer(name=str(i), num_kv_heads=1, head_size=1, dtype="float32", window_tokens=window)
        for i, window in enumerate(windows)
    ]
    layout = plan_layout(layers, block_tokens=4, num_blocks=num_blocks)
    return KVCacheManager(layout, cache_spec(num_blocks, prefix), b"k")


def cache_spec(num_blocks: int, prefix: bool = True) -> CacheSpec:
    return CacheSpec(
        block_tokens=4,
        num_blocks=num_blocks,
        memory_bytes=None,
        memory_share=0.0,
        uses_prefix_cache=prefix,
        hash_algorithm=prefix_hash.DEFAULT,
    )


def make_request(name: str, token_ids: Sequence[int], salt: str = "", **sampling: int) -> Request:
    return Request(
        request_id=name,
        prompt_ids=token_ids,
        sampling=SamplingParams(**sampling),
        seed=0,
        max_model_tokens=1_000,
        cache_salt=salt,
    )


def fill(cache: KVCacheManager, request: Request) -> tuple[tuple[int, ...], ...]:
    """Compute a whole prompt, taking what is cached; return the blocks handed out."""
    cached = cache.find_prefix(request)
    blocks = cache.allocate(request, request.num_tokens, cached_tokens=cached)
    assert blocks is not None
    cache.commit(request, request.num_tokens)
    cache.check_invariants()
    return blocks


def test_room_grows_by_whole_blocks() -> None:
    cache = make_cache()
    request = make_request("a", range(6))
    assert [len(b) for b in cache.allocate(request, 6) or ()] == [2]
    assert cache.allocate(request, 8) == ((),)
    assert [len(b) for b in cache.allocate(request, 9) or ()] == [1]
    assert (cache.num_blocks, cache.num_free_blocks) == (16, 13)
    assert cache.usage == pytest.approx(3 / 16)
    cache.free(request)
    cache.free(request)
    assert cache.num_free_blocks == 16


def test_too_little_room_changes_nothing() -> None:
    cache = make_cache(num_blocks=4)
    old, new = make_request("old", range(6)), make_request("new", range(50, 56))
    cache.allocate(old, 6)
    assert cache.allocate(new, 6) is None
    assert cache.allocate(old, 20) is None
    assert cache.num_free_blocks == 1
    assert cache.blocks_of(new) == ((),)
    cache.check_invariants()


def test_a_prefix_is_shared_and_outlives_its_request() -> None:
    cache = make_cache()
    first = fill(cache, make_request("a", range(10)))
    b = make_request("b", [*range(9), 99])
    assert cache.find_prefix(b) == 8
    assert fill(cache, b)[0][:2] == first[0][:2]
    assert cache.num_free_blocks == 16 - 4
    cache.free(make_request("a", ()))
    cache.free(b)
    assert cache.num_free_blocks == 16
    assert cache.find_prefix(make_request("c", range(9))) == 8
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (20, 8)


def test_one_token_is_always_left_to_compute() -> None:
    cache = make_cache()
    fill(cache, make_request("a", range(8)))
    assert cache.find_prefix(make_request("b", range(8))) == 4


def test_uncommitted_tokens_and_other_salts_are_not_found() -> None:
    cache = make_cache()
    a = make_request("a", range(12))
    cache.allocate(a, 12)
    cache.commit(a, 7)
    assert cache.find_prefix(make_request("b", range(12))) == 4
    assert cache.find_prefix(make_request("c", range(12), salt="s")) == 0


def test_prompt_logprobs_and_a_cache_without_prefixes_find_nothing() -> None:
    cache = make_cache()
    fill(cache, make_request("a", range(12)))
    assert cache.find_prefix(make_request("b", range(12), prompt_logprobs=0)) == 0
    plain = make_cache(prefix=False)
    fill(plain, make_request("a", range(12)))
    assert plain.find_prefix(make_request("b", range(12))) == 0


def test_a_cached_block_that_nobody_owns_counts_as_needed() -> None:
    cache = make_cache(num_blocks=4)
    a = make_request("a", range(9))
    fill(cache, a)
    cache.free(a)
    other = make_request("other", range(50, 54))
    cache.allocate(other, 4)
    b = make_request("b", range(12))
    # Two free blocks, both the cached prefix: a third for the rest is missing.
    assert cache.allocate(b, 12, cached_tokens=cache.find_prefix(b)) is None
    cache.check_invariants()


def test_a_pinned_prefix_stays_until_its_time_or_until_the_room_is_needed() -> None:
    cache = make_cache(num_blocks=9)
    pinned = make_request("pinned", range(16))
    fill(cache, pinned)
    cache.free(pinned)
    cache.pin(pinned, 60, pinned.num_prompt_tokens)
    cache.check_invariants()
    assert (cache.num_free_blocks, cache.num_pinned_blocks) == (4, 4)
    for number in range(5):  # others come and go in the room that is left
        other = make_request("other", range(100 * number, 100 * number + 16), salt="s")
        fill(cache, other)
        cache.free(other)
    assert cache.find_prefix(make_request("again", range(20))) == 16
    large = make_request("large", range(900, 926))  # needs 7 blocks of 8
    fill(cache, large)
    assert cache.num_pinned_blocks == 1
    cache.free(large)
    short = make_request("short", range(500, 516))
    fill(cache, short)
    cache.free(short)
    cache.pin(short, 0.01, short.num_prompt_tokens)
    assert cache.num_pinned_blocks == 5
    time.sleep(0.02)
    assert cache.allocate(make_request("next", range(4)), 4) is not None
    assert cache.num_pinned_blocks == 1
    cache.pin(short, 60, short.num_prompt_tokens)
    cache.forget_all()
    assert cache.num_pinned_blocks == 0
    cache.check_invariants()


def test_a_pin_that_gives_way_to_its_own_prefix_counts_once() -> None:
    cache = make_cache(num_blocks=5)
    first = make_request("first", range(12))
    fill(cache, first)
    cache.free(first)
    cache.pin(first, 60, first.num_prompt_tokens)
    second = make_request("second", [*range(12), *range(50, 54)])
    fill(cache, second)
    assert cache.num_free_blocks == 0
    assert cache.allocate(make_request("third", range(70, 74)), 4) is None
    cache.free(second)
    cache.check_invariants()


def test_suffixes_are_evicted_before_what_they_stand_on() -> None:
    cache = make_cache(num_blocks=5)
    a = make_request("a", range(17))
    cache.allocate(a, 16)
    cache.commit(a, 16)
    cache.free(a)
    cache.allocate(make_request("b", range(50, 58)), 8)
    assert cache.find_prefix(make_request("c", range(17))) == 8


def test_forgotten_blocks_are_not_found_again_even_shared_ones() -> None:
    cache = make_cache()
    a, b = make_request("a", range(10)), make_request("b", range(16))
    fill(cache, a)
    fill(cache, b)
    cache.free(b, forget=True)
    assert cache.find_prefix(make_request("c", range(16))) == 0
    cache.check_invariants()
    cache.free(a)
    cache.check_invariants()
    assert cache.num_free_blocks == 16


def test_blocks_out_of_the_window_are_given_back() -> None:
    cache = make_cache(windows=(None, 5))
    request = make_request("a", range(16))
    fill(cache, request)
    full, windowed = cache.blocks_of(request)
    assert 0 not in full
    # The query at position 16 sees 12 .. 16: blocks 0 to 2 are out.
    assert windowed[:3] == (0, 0, 0)
    assert windowed[3] != 0
    assert cache.num_free_blocks == 16 - 5
    cache.allocate(request, 17)
    assert [len(table) for table in cache.blocks_of(request)] == [5, 5]
    cache.free(request)
    cache.check_invariants()
    assert cache.num_free_blocks == 16


def test_a_hit_needs_only_the_blocks_in_the_window() -> None:
    cache = make_cache(num_blocks=40, windows=(None, 5))
    a = make_request("a", range(17))
    fill(cache, a)
    b = make_request("b", [*range(17), 7, 7])
    assert cache.find_prefix(b) == 16
    full, windowed = fill(cache, b)
    assert windowed[:3] == (0, 0, 0)
    assert (full[:4], windowed[3]) == (
        cache.blocks_of(a)[0][:4],
        cache.blocks_of(a)[1][3],
    )


def test_every_group_must_have_the_prefix() -> None:
    cache = make_cache(num_blocks=40, windows=(None, 9))
    a = make_request("a", range(17))
    fill(cache, a)
    block = cache.blocks_of(a)[1][2]
    pool_of(cache).forget(block)
    # Without block 2, prefixes of 3 and 4 blocks miss part of the window of 9.
    assert cache.find_prefix(make_request("b", range(17))) == 8


@pytest.mark.parametrize("damage", ["lost", "twice", "shared unfinished"])
def test_the_checker_sees_damage(damage: str) -> None:
    cache = make_cache()
    a, b = make_request("a", range(8)), make_request("b", range(50, 58))
    cache.allocate(a, 8)
    cache.allocate(b, 8)
    cache.check_invariants()
    of_a, of_b = (cache._holdings[name].tables[0] for name in "ab")
    if damage == "lost":
        of_a[1] = 0
    elif damage == "twice":
        of_a[1] = of_b[1]
    else:
        pool_of(cache).release([of_a[1]])
        pool_of(cache).share([of_b[1]])
        of_a[1] = of_b[1]
    with pytest.raises(AssertionError):
        cache.check_invariants()


def encoded(rows: int) -> Request:
    request = make_request("a", range(3))
    place = PartPlace("key", "text", (), rows)
    request.parts = (PromptPart(place=place, features=()),)
    return request


def cache_beside_an_encoder(num_blocks: int = 12) -> KVCacheManager:
    kept = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
    layers = [KVLayer(name="own", **kept), CrossLayer(name="cross", max_rows=20, **kept)]
    spec = cache_spec(num_blocks)
    layout = plan_layout(layers, block_tokens=4, num_blocks=num_blocks, host_bytes=1 << 12)
    return KVCacheManager(layout, spec, b"k")


def test_what_an_encoder_read_has_its_blocks_at_once() -> None:
    cache = cache_beside_an_encoder()
    assert [group.cross_rows for group in cache.layout.groups] == [0, 20]
    assert (cache.num_groups, cache.num_growing) == (2, 1)
    assert cache.blocks_for(3, 8) == 1 + 5
    request = encoded(9)
    assert [len(b) for b in cache.allocate(request, 3) or ()] == [1, 3]
    assert cache.allocate(request, 5) == ((cache.blocks_of(request)[0][1],), ())
    cache.commit(request, 5)
    cache.check_invariants()
    other = make_request("b", range(5))
    other.parts = request.parts
    assert cache.find_prefix(other) == 0
    cache.free(request)
    assert cache.num_free_blocks == cache.num_blocks


def test_what_an_encoder_read_goes_to_the_host_as_a_whole() -> None:
    cache = cache_beside_an_encoder()
    request = encoded(9)
    before = cache.allocate(request, 3)
    assert before is not None
    cache.allocate(request, 5)
    cache.commit(request, 5)
    out = cache.swap_out(request, 4)
    assert out is not None and len(out) == 1 + 3
    assert cache.num_free_blocks == cache.num_blocks
    request.token_ids += [1, 2, 3]
    found = cache.swap_in(request, 6)
    assert found is not None
    (own, cross), back = found
    assert (len(own), len(cross), len(back)) == (2, 3, 4)
    assert {host for _, host in out} == {host for host, _ in back}
    cache.check_invariants()


def test_no_room_for_what_an_encoder_read() -> None:
    cache = cache_beside_an_encoder(num_blocks=4)
    assert cache.allocate(encoded(12), 3) is None
    assert cache.num_free_blocks == 3
    assert cache.allocate(encoded(8), 3) is not None
