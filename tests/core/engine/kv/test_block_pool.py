"""The block pool against a plain model: order of reuse, counts, and an index that never lies."""

from __future__ import annotations

from random import Random

import pytest

from dovetail.engine.kv.block_pool import NULL_BLOCK, BlockPool


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5, 1)
    assert pool.num_free == 4
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert pool.num_free == 0
    with pytest.raises(AssertionError, match="more blocks"):
        pool.take(1)


def test_unhashed_blocks_are_reused_before_cached_ones() -> None:
    pool = BlockPool(5, 1)
    blocks = pool.take(4)
    pool.publish(0, blocks[0], b"a")
    pool.release(blocks)
    assert set(pool.take(3)) == set(blocks[1:])
    assert pool.find(0, b"a") == blocks[0]
    assert pool.take(1) == [blocks[0]]
    assert pool.find(0, b"a") == NULL_BLOCK


def test_cached_blocks_are_evicted_least_recently_freed_first() -> None:
    pool = BlockPool(4, 1)
    a, b, c = pool.take(3)
    for block, name in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.publish(0, block, name)
    pool.release([b, c, a])
    pool.share([b])  # used again, so it is now the most recent
    pool.release([b])
    assert pool.take(3) == [c, a, b]


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = BlockPool(3, 1)
    (block,) = pool.take(1)
    pool.share([block])
    pool.release([block])
    assert (pool.refs(block), pool.num_free) == (1, 1)
    pool.release([block])
    assert (pool.refs(block), pool.num_free) == (0, 2)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release([block])


def test_a_free_block_makes_way_for_an_owned_one_of_its_hash() -> None:
    """What a request computed again stays findable once the older copy is taken."""
    pool = BlockPool(4, 1)
    older, newer = pool.take(2)
    pool.publish(0, older, b"a")
    pool.release([older])
    pool.publish(0, newer, b"a")
    assert pool.find(0, b"a") == newer
    assert pool.take(2)[1] == older
    assert pool.find(0, b"a") == newer
    pool.check_invariants()


def test_the_first_block_under_a_hash_stays_and_groups_are_apart() -> None:
    pool = BlockPool(4, 2)
    a, b, c = pool.take(3)
    pool.publish(0, a, b"h")
    pool.publish(0, b, b"h")
    pool.publish(1, c, b"h")
    assert (pool.find(0, b"h"), pool.find(1, b"h")) == (a, c)
    pool.forget(b)
    pool.forget(a)
    assert (pool.find(0, b"h"), pool.find(1, b"h")) == (NULL_BLOCK, c)


@pytest.mark.parametrize("damage", ["count", "link", "index", "owner"])
def test_the_checker_sees_damage(damage: str) -> None:
    pool = BlockPool(6, 1)
    (block, other) = pool.take(2)
    pool.publish(0, block, b"h")
    pool.check_invariants()
    if damage == "count":
        pool.num_free += 1
    elif damage == "link":
        pool._prev[3] = 5
    elif damage == "index":
        pool._index[0][b"x"] = other
    else:
        pool._refs[other] = 0
    with pytest.raises(AssertionError):
        pool.check_invariants()


@pytest.mark.parametrize("seed", range(5))
def test_random_use_agrees_with_a_model(seed: int) -> None:
    random = Random(seed)
    pool = BlockPool(12, 2)
    owned: list[int] = []
    for _ in range(2_000):
        action = random.randrange(4)
        if action == 0 and pool.num_free:
            owned += pool.take(random.randint(1, pool.num_free))
        elif action == 1 and owned:
            pool.release([owned.pop(random.randrange(len(owned)))])
        elif action == 2 and owned:
            pool.publish(random.randrange(2), random.choice(owned), bytes([random.randrange(9)]))
        else:
            block = pool.find(random.randrange(2), bytes([random.randrange(9)]))
            if block != NULL_BLOCK:
                pool.share([block])
                owned.append(block)
        pool.check_invariants()
        assert all(pool.refs(block) == owned.count(block) for block in range(12))
