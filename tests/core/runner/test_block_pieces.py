"""Pieces of blocks: latents and index keys find their places in blocks of another size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sealed_block import HEADER_BYTES
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.data.step import CachedLayer, EntryLayer, EntryPart, KVLayout, LatentLayer
from dovetail.interfaces.kv_connector import Part
from dovetail.runner.kv.allocation import cache_tensors, layer_caches
from dovetail.runner.kv.block_pieces import Pieces
from dovetail_testing.reference import ReferenceAttention

LAYERS: list[CachedLayer] = [
    LatentLayer(name="first", size=6, dtype="bfloat16", index_size=3),
    LatentLayer(name="second", size=6, dtype="bfloat16"),
    EntryLayer(
        name="of two",
        parts=(EntryPart(name="a", size=5, tokens=1), EntryPart(name="b", size=2, tokens=1)),
        dtype="bfloat16",
    ),
]
KEY = bytes([0]) + bytes(range(64))
"""The name of a block of two units in group 0."""


def laid_out(block_tokens: int) -> KVLayout:
    return plan_layout(LAYERS, block_tokens=block_tokens, num_blocks=3)


def pieces(layout: KVLayout) -> Pieces:
    rank = RankSpec()
    return Pieces(layout, LAYERS, ReferenceAttention, rank, model_heads=4, unit_tokens=16)


def block_of(layout: KVLayout, memory: list[torch.Tensor], block: int) -> np.ndarray:
    """Return a block's bytes of all tensors in a row."""
    return np.concatenate([one[block].numpy() for one in memory])


def test_entries_are_not_cut() -> None:
    parts = (EntryPart(name="a", size=3, tokens=4),)
    layers = [EntryLayer(name="entries", parts=parts, dtype="float32")]
    layout = plan_layout(layers, block_tokens=32, num_blocks=3)
    with pytest.raises(ConfigError, match="other rates than tokens"):
        Pieces(layout, layers, ReferenceAttention, RankSpec(), model_heads=4, unit_tokens=16)


def test_a_block_counts_its_index_keys() -> None:
    assert laid_out(16).block_bytes == 16 * (6 + 3) * 2


def test_latents_and_index_keys_travel_between_block_sizes() -> None:
    """A block of 32 tokens becomes two of 16."""
    wide, narrow = laid_out(32), laid_out(16)
    random = torch.Generator().manual_seed(0)
    memory = [
        torch.randint(0, 256, (3, wide.block_bytes), generator=random, dtype=torch.uint8)
        for _ in range(wide.num_tensors)
    ]
    given = layer_caches(wide, LAYERS, ReferenceAttention(), memory)
    payload = block_of(wide, memory, 1)
    row = np.concatenate([np.zeros(HEADER_BYTES, dtype=np.uint8), payload])
    sent = list(pieces(wide).sealed(KEY, row))
    assert len(sent) == 2
    to = [torch.zeros(3, narrow.block_bytes, dtype=torch.uint8) for _ in LAYERS]
    found = layer_caches(narrow, LAYERS, ReferenceAttention(), to)
    for block, (name, sealed) in enumerate(sent):
        out = np.zeros(narrow.num_tensors * narrow.block_bytes, dtype=np.uint8)
        part = Part(rank=-1, num_ranks=0, block=sealed)
        assert pieces(narrow).place(name, 0, [part], out)
        for one, own in zip(to, np.split(out, narrow.num_tensors), strict=True):
            one[block] = torch.from_numpy(own)
    tensors = cache_tensors(found)
    assert len(tensors) == 5
    for had, has in zip(tensors, cache_tensors(given), strict=True):
        bits, theirs = had[:2].flatten(0, 1).view(torch.int16), has[1].view(torch.int16)
        assert torch.equal(bits, theirs)
