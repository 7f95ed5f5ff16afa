"""Layout planning, room for one request, and the longest common hit against brute force."""

from __future__ import annotations

from random import Random

import pytest

from dovetail.engine.kv.kv_groups import (
    blocks_for,
    longest_hit,
    max_request_tokens,
    plan_layout,
    verify_fits,
    window_start,
)
from dovetail.errors import ConfigError
from dovetail.interfaces.data.step import KVLayer, StateLayer, StatePart


def layer(name: object, window: int | None = None, head_size: int = 8) -> KVLayer:
    return KVLayer(
        name=str(name), num_kv_heads=2, head_size=head_size, dtype="float16", window_tokens=window
    )


def test_one_kind_is_one_group() -> None:
    layout = plan_layout([layer(i) for i in range(5)], block_tokens=16, memory_bytes=100_000)
    assert [group.layers for group in layout.groups] == [("0", "1", "2", "3", "4")]
    assert layout.num_tensors == 5
    assert layout.block_bytes == 16 * 2 * 2 * 8 * 2
    assert layout.num_blocks == 100_000 // (5 * layout.block_bytes)


def draft(name: str, window: int | None = None) -> KVLayer:
    return KVLayer(
        name=name, num_kv_heads=1, head_size=4, dtype="float32", window_tokens=window, is_draft=True
    )


def test_layers_of_a_drafter_lie_beside_the_first_group() -> None:
    layers = [layer(0, 64), layer(1), draft("0"), draft("1", 64)]
    layout = plan_layout(layers, block_tokens=16, memory_bytes=100_000, host_bytes=50_000)
    assert [group.layers for group in layout.groups] == [("1",), ("0",)]
    assert layout.draft is not None
    assert [group.layers for group in layout.draft.groups] == [("0", "1")]
    one, both = 16 * 2 * 4 * 4, 16 * 2 * 2 * 8 * 2
    assert (layout.draft.block_bytes, layout.block_bytes) == (one, both)
    assert layout.all_bytes == 2 * one + both
    assert layout.num_blocks == layout.draft.num_blocks == 100_000 // layout.all_bytes
    assert layout.num_host_blocks == layout.draft.num_host_blocks == 50_000 // layout.all_bytes


def test_a_drafter_needs_what_the_first_group_keeps() -> None:
    with pytest.raises(ConfigError, match="keeps no keys"):
        plan_layout([draft("0")], block_tokens=16, num_blocks=9)
    with pytest.raises(ConfigError, match=r"forget what is 64 tokens back.*looks further"):
        plan_layout([layer(0, 64), draft("1")], block_tokens=16, num_blocks=9)
    near = plan_layout([layer(0, 64), draft("1", 32)], block_tokens=16, num_blocks=9)
    assert near.draft is not None


def test_kinds_share_tensors_in_equal_groups() -> None:
    layers = [layer(i, None if i % 6 == 5 else 512) for i in range(26)]
    layout = plan_layout(layers, block_tokens=16, num_blocks=99)
    sizes = [len(group.layers) for group in layout.groups]
    assert sizes == [4, 4, 4, 4, 4, 4, 2]
    assert [group.window_tokens for group in layout.groups] == [None] + [512] * 6
    assert layout.num_tensors == 4
    assert sorted(name for group in layout.groups for name in group.layers) == sorted(
        str(i) for i in range(26)
    )


def test_nearly_equal_kinds_are_padded_rather_than_cut() -> None:
    layers = [layer(i, 64 if i < 12 else None) for i in range(25)]
    layout = plan_layout(layers, block_tokens=16, num_blocks=9)
    assert [len(group.layers) for group in layout.groups] == [13, 12]


def test_many_small_groups_are_avoided() -> None:
    layers = [layer(i, 64 if i else None) for i in range(61)]
    layout = plan_layout(layers, block_tokens=16, num_blocks=9)
    assert len(layout.groups) <= 16
    assert {name for group in layout.groups for name in group.layers} == set(map(str, range(61)))


def test_a_model_without_attention_has_no_groups() -> None:
    layout = plan_layout([], block_tokens=16, memory_bytes=1_000)
    assert (layout.groups, layout.num_tensors) == ((), 0)


def test_a_block_takes_what_the_largest_layer_needs() -> None:
    layout = plan_layout([layer("a"), layer("b", head_size=16)], block_tokens=16, num_blocks=9)
    small = plan_layout([layer("a")], block_tokens=16, num_blocks=9)
    assert layout.block_bytes == 2 * small.block_bytes


def state(name: object, size: int) -> StateLayer:
    part = StatePart(name="state", shape=(size, 4), dtype="float32")
    return StateLayer(name=f"state {name}", parts=(part,))


def test_blocks_hold_so_many_tokens_that_a_state_fills_them() -> None:
    """A block's keys and values take 64 bytes a token and layer, a state 16,000."""
    layers = [layer("a"), *(state(i, 1000) for i in range(4))]
    layout = plan_layout(layers, block_tokens=16, num_blocks=9)
    assert layout.block_tokens == 256
    assert layout.block_bytes == 256 * 64
    assert [(len(g.layers), g.window_tokens) for g in layout.groups] == [(1, None), *[(1, 2)] * 4]
    only = plan_layout(layers[1:], block_tokens=16, num_blocks=9)
    assert (only.block_tokens, only.block_bytes) == (16, 16_000)
    small = plan_layout([layer("a"), state(0, 16)], block_tokens=16, num_blocks=9)
    assert (small.block_tokens, small.block_bytes) == (16, 1024)


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="only 0 KV blocks") as caught:
        plan_layout([layer("a")], block_tokens=16, memory_bytes=10)
    assert "--gpu-memory-utilization" in str(caught.value)
    with pytest.raises(ConfigError, match="neither"):
        plan_layout([layer("a")], block_tokens=16)


def test_room_for_one_request() -> None:
    layout = plan_layout([layer("a"), layer("b", 9)], block_tokens=4, num_blocks=21)
    assert blocks_for(layout, 1, 8) == 2
    # Full: 25 blocks. Window of 9: two blocks behind, two for a step of 8, one more.
    assert blocks_for(layout, 100, 8) == 25 + 5
    longest = max_request_tokens(layout, 1_000, 8)
    assert blocks_for(layout, longest, 8) <= 20 < blocks_for(layout, longest + 1, 8)
    verify_fits(layout, longest + 1, 8)
    with pytest.raises(ConfigError, match="--max-model-len"):
        verify_fits(layout, longest + 2, 8)


@pytest.mark.parametrize("seed", range(300))
def test_the_longest_hit_is_the_longest(seed: int) -> None:
    random = Random(seed)
    size, limit = random.choice((1, 4)), random.randrange(0, 12)
    windows = [random.choice((None, 1, 2, 5, 9, 17, 100)) for _ in range(random.randint(1, 3))]
    there = [{i for i in range(limit) if random.random() < 0.8} for _ in windows]

    def serves(count: int) -> bool:
        return all(
            all(
                i in blocks
                for i in range(0 if w is None else window_start(w, count * size, size), count)
            )
            for w, blocks in zip(windows, there, strict=True)
        )

    expected = max(count for count in range(limit + 1) if serves(count))
    groups = [(w, blocks.__contains__) for w, blocks in zip(windows, there, strict=True)]
    assert longest_hit(groups, limit, size) == expected
