"""Host blocks give back what they took, whatever the shape of the cache and the order of blocks."""

from __future__ import annotations

import random
from typing import cast

import msgspec
import pytest
import torch

from dovetail.interfaces.data.step import KVGroup, KVLayer, KVLayout
from dovetail.interfaces.plugin import NoOptions
from dovetail.runner.kv import host_blocks
from dovetail.runner.kv.allocation import allocate_tensors, layer_caches
from dovetail.runner.kv.host_blocks import HostBlockStorage
from dovetail_testing.reference import ReferenceAttention

NUM_BLOCKS, NUM_HOST_BLOCKS = 20, 30


class BlockFirst(ReferenceAttention):
    """Keeps the keys and values of a block together."""

    def kv_shape(
        self, num_blocks: int, block_tokens: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        return (num_blocks, 2, num_kv_heads, block_tokens, head_size)


def rig(
    backend: ReferenceAttention, dtype: str, head_size: int
) -> tuple[HostBlockStorage, dict[str, torch.Tensor]]:
    """Return host blocks and the caches of three layers, two of which share memory, filled."""
    layers = [
        KVLayer(name=name, num_kv_heads=2, head_size=head_size, dtype=dtype) for name in "abc"
    ]
    size = torch.zeros(0, dtype=getattr(torch, dtype)).itemsize
    layout = KVLayout(
        groups=(KVGroup(layers=("a", "b")), KVGroup(layers=("c",), window_tokens=4)),
        num_tensors=2,
        num_blocks=NUM_BLOCKS,
        block_tokens=4,
        block_bytes=4 * layers[0].bytes_per_token(size),
        num_host_blocks=NUM_HOST_BLOCKS,
    )
    tensors = allocate_tensors(layout, torch.device("cpu"))
    for tensor in tensors:
        tensor.random_(0, 256)
    caches = layer_caches(layout, layers, backend, tensors)
    return HostBlockStorage(layout, tensors), cast(dict[str, torch.Tensor], caches)


@pytest.mark.parametrize("piece_blocks", [1, 3, 100])
@pytest.mark.parametrize(("dtype", "head_size"), [("float32", 8), ("float8_e4m3fn", 5)])
@pytest.mark.parametrize("backend", [ReferenceAttention, BlockFirst])
def test_blocks_come_back_as_they_went(
    backend: type[ReferenceAttention],
    dtype: str,
    head_size: int,
    piece_blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = backend(NoOptions())
    block_bytes = 4 * 2 * 2 * head_size * (4 if dtype == "float32" else 1)
    monkeypatch.setattr(host_blocks, "PIECE_BYTES", piece_blocks * 2 * block_bytes)
    monkeypatch.setattr(host_blocks, "SLAB_BYTES", 7 * 2 * block_bytes)
    host, caches = rig(made, dtype, head_size)
    axis = 0 if backend is BlockFirst else 1
    before = {name: cache.view(torch.uint8).clone() for name, cache in caches.items()}
    draw = random.Random(0)
    blocks = draw.sample(range(1, NUM_BLOCKS), 9)
    hosts = draw.sample(range(NUM_HOST_BLOCKS), 9)
    back = draw.sample(range(1, NUM_BLOCKS), 9)
    host.swap_out(list(zip(blocks, hosts, strict=True)))
    for cache in caches.values():
        cache.view(torch.uint8).zero_()
    host.swap_in(list(zip(hosts, back, strict=True)))
    for name, cache in caches.items():
        found = cache.view(torch.uint8).movedim(axis, 0)
        wanted = before[name].movedim(axis, 0)
        assert torch.equal(found[back], wanted[blocks])
        others = [block for block in range(NUM_BLOCKS) if block not in back]
        assert not found[others].any()


def test_a_layout_without_layers_or_copies_does_nothing() -> None:
    layout = msgspec.structs.replace(
        KVLayout(groups=(), num_tensors=0, num_blocks=2, block_tokens=4, block_bytes=0),
        num_host_blocks=3,
    )
    host = HostBlockStorage(layout, [])
    host.swap_out(())
    host.swap_in(())
