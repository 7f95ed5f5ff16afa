"""KV tensors: a block id names one piece of memory whichever layer or group looks at it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.errors import ConfigError
from dovetail.interfaces.data.step import (
    EntryLayer,
    EntryPart,
    KVGroup,
    KVLayer,
    KVLayout,
    LatentLayer,
)
from dovetail.interfaces.plugin import NoOptions
from dovetail.runner.kv.allocation import allocate_tensors, group_of_layers, layer_caches
from dovetail.runner.rows.block_table import BlockTable
from dovetail_testing.reference import ReferenceAttention

BACKEND = ReferenceAttention(NoOptions())
CPU = torch.device("cpu")


def layer(name: str, head_size: int = 8, dtype: str = "float32") -> KVLayer:
    return KVLayer(name=name, num_kv_heads=2, head_size=head_size, dtype=dtype)


LAYOUT = KVLayout(
    groups=(KVGroup(layers=("a", "b")), KVGroup(layers=("c",), window_tokens=4)),
    num_tensors=2,
    num_blocks=5,
    block_tokens=4,
    block_bytes=2 * 4 * 2 * 8 * 4,
)


def test_groups_share_tensors() -> None:
    caches = layer_caches(LAYOUT, [layer(n) for n in "abc"], BACKEND, allocate_tensors(LAYOUT, CPU))
    assert {name: tuple(c.shape) for name, c in caches.items()} == dict.fromkeys(
        "abc", (2, 5, 4, 2, 8)
    )
    assert caches["a"].data_ptr() == caches["c"].data_ptr() != caches["b"].data_ptr()
    assert group_of_layers(LAYOUT) == {"a": 0, "b": 0, "c": 1}


def test_entries_of_several_layers_share_blocks() -> None:
    """One entry for every 4 tokens of a layer, one for every 24 of another; a window of tokens has
    blocks of its own, of as many tokens."""
    parts = (EntryPart(name="a", size=3, tokens=4), EntryPart(name="b", size=5, tokens=24))
    entries = EntryLayer(name="entries", parts=parts, dtype="float32")
    window = LatentLayer(name="last", size=2, index_size=1, dtype="float32", window_tokens=30)
    layout = plan_layout([window, entries], block_tokens=16, num_blocks=4)
    assert layout.block_tokens == 48  # of whole entries, and a multiple of 16
    assert [group.window_tokens for group in layout.groups] == [None, 30]
    assert layout.block_bytes == max(48 * 3, 12 * 3 + 2 * 5) * 4
    memory = allocate_tensors(layout, CPU)
    views = layer_caches(layout, [window, entries], BACKEND, memory)["entries"]
    assert isinstance(views, dict)
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        "a": (4, 12, 3),
        "b": (4, 2, 5),
    }
    views["a"][1].fill_(2)
    views["b"][1].fill_(7)
    numbers = memory[0].view(torch.float32)[1, : 36 + 10]
    assert numbers.tolist() == [2.0] * 36 + [7.0] * 10


def test_larger_blocks_than_the_tensors_are_refused() -> None:
    layers = [layer("a", head_size=4), layer("b"), layer("c", head_size=12)]
    with pytest.raises(ConfigError, match="a block of layer c takes"):
        layer_caches(LAYOUT, layers, BACKEND, allocate_tensors(LAYOUT, CPU))


def test_too_large_a_cache_names_the_flag() -> None:
    huge = msgspec.structs.replace(LAYOUT, num_blocks=1 << 45)
    with pytest.raises(ConfigError, match="gpu-memory-utilization"):
        layer_caches(huge, [layer(n) for n in "abc"], BACKEND, allocate_tensors(huge, CPU))


def test_block_table() -> None:
    table = BlockTable(3, 4, 4)
    table.fill_row(1, (7, 3))
    table.append(1, (9,))
    rows = np.array([1, 1, 1])
    assert table.slots(rows, np.array([0, 5, 11])).tolist() == [28, 13, 39]
    assert table.gather(np.array([1, 0]), 9).tolist() == [[7, 3, 9], [0, 0, 0]]
    table.clear_row(1)
    assert not table.ids.any()
    with pytest.raises(AssertionError, match="more than it can use"):
        table.append(2, range(5))
