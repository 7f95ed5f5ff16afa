"""One layout of blocks for stages that cache different layers."""

from __future__ import annotations

import msgspec

from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.interfaces.data.step import KVLayer
from dovetail_plugins.ranks.stage_caches import StageCaches


def layers(*windows: int | None, first: int = 0) -> list[KVLayer]:
    return [
        KVLayer(name=str(first + i), num_kv_heads=1, head_size=1, dtype="float32", window_tokens=w)
        for i, w in enumerate(windows)
    ]


def test_one_stage_is_left_as_it_is() -> None:
    caches, own = StageCaches(1, 2), layers(None, 8)
    assert caches.common_layers([own, own]) == own
    layout = plan_layout(own, block_tokens=4, num_blocks=9)
    assert caches.own_layouts(layout) == [layout]


def test_every_stage_has_the_same_groups_and_its_own_layers() -> None:
    """Two stages of two ranks: three windows and a full layer, then a window and two full ones."""
    first, second = layers(8, 8, 8, None), layers(None, 8, None, first=4)
    caches = StageCaches(2, 2)
    common = caches.common_layers([first, first, second, second])
    windows = [layer.window_tokens for layer in common]
    assert (windows.count(8), windows.count(None)) == (3, 2)
    layout = plan_layout(common, block_tokens=4, num_blocks=9)
    ours, theirs = caches.own_layouts(layout)
    for own, has in ((ours, first), (theirs, second)):
        assert [group.window_tokens for group in own.groups] == [
            group.window_tokens for group in layout.groups
        ]
        assert (own.num_blocks, own.block_bytes) == (9, layout.block_bytes)
        assert own.num_tensors == max(len(group.layers) for group in own.groups)
        placed = {name: group.window_tokens for group in own.groups for name in group.layers}
        assert placed == {layer.name: layer.window_tokens for layer in has}
    assert theirs.num_tensors <= layout.num_tensors


def test_blocks_are_as_large_as_the_largest_of_any_stage() -> None:
    """The second stage has fewer windows, and a larger one."""
    first, second = layers(8, 8, None), layers(8, None, first=3)
    second[0] = msgspec.structs.replace(second[0], head_size=7)
    common = StageCaches(2, 1).common_layers([first, second])
    assert [layer.name for layer in common] == ["3", "1", "2"]
    layout = plan_layout(common, block_tokens=4, num_blocks=9)
    assert layout.block_bytes == second[0].block_bytes(4, 4)
