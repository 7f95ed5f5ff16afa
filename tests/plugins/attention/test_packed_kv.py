"""KV caches of 4 bits: what backends store and attend, against the definition in torch.

Keys have a large part that all share, as those of Qwen2.5 have, so most are stored as differences
from the first key of their 16 tokens.
"""

from __future__ import annotations

import pytest
import torch

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionQuery,
    AttentionSpec,
    BatchLayout,
)
from dovetail_kernels.cache_write.reference import reference as write
from dovetail_kernels.cpu.library import missing_reason
from dovetail_kernels.integer_caches import BITS, cell_bytes, stored_size
from dovetail_kernels.paged_attention.reference import reference as attend
from dovetail_kernels.paged_attention.rotation import rotated_keys, rotated_queries
from dovetail_plugins.attention.native_cpu import NativeCpu
from dovetail_plugins.attention.triton_paged import TritonPaged

PACKED = ("k8v4", "int4")
HEADS, KV_HEADS, BLOCK = 6, 2, 32
WINDOW = 45
NEEDED = pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))


def tokens(count: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v of a row. Shapes: [T, H, D], [T, K, D] twice"""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(count, heads, size, generator=draw) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    return q / 4, k + 8 * torch.randn(1, KV_HEADS, size, generator=draw), v


class World:
    """A backend's cache for several rows, of bytes that are all ones before they are written."""

    def __init__(self, kind: type[AttentionBackend], dtype: str, size: int, rows: int = 2) -> None:
        self.backend = kind(kind.Options())
        self.spec = AttentionSpec(
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=size, scale=size**-0.5,
            window_tokens=None,
        )  # fmt: skip
        self.windowed = AttentionSpec(
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=size, scale=size**-0.5,
            window_tokens=WINDOW,
        )  # fmt: skip
        self.blocks = 8
        order = torch.randperm(rows * self.blocks, generator=torch.Generator().manual_seed(1)) + 1
        self.table = order.int().view(rows, self.blocks)
        shape = self.backend.kv_shape(
            rows * self.blocks + 1, BLOCK, KV_HEADS, stored_size(dtype, size)
        )
        axis = shape.index(rows * self.blocks + 1)
        inside = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        self.cache = torch.full(inside, -1, dtype=torch.int8).movedim(0, axis)
        self.lengths = [0] * rows

    def step(self, parts: list[tuple[int, list[torch.Tensor]]]) -> list[torch.Tensor]:
        """Return rows' answers without a window and then with one, side by side. Mutates: self"""
        counts = [len(x[0]) for _, x in parts]
        rows = [row for row, _ in parts]
        slots = []
        for row, count in zip(rows, counts, strict=True):
            at = torch.arange(self.lengths[row], self.lengths[row] + count)
            slots.append(self.table[row, at // BLOCK].long() * BLOCK + at % BLOCK)
            self.lengths[row] += count
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        lengths = [self.lengths[row] for row in rows]
        layout = BatchLayout(
            query_start=torch.tensor(starts).int(), seq_lens=torch.tensor(lengths).int(),
            block_table=self.table[rows], slots=torch.cat(slots), query_start_host=starts,
            seq_lens_host=lengths, block_tokens=BLOCK, max_query_tokens=max(counts),
            max_seq_tokens=max(lengths),
        )  # fmt: skip
        q, k, v = (torch.cat([x[i] for _, x in parts]) for i in range(3))
        found = []
        for spec in (self.spec, self.windowed):
            call = AttentionCall(
                spec=spec, q=q, k=k, v=v, cache=self.cache, prepared=self.backend.prepare(layout)
            )
            found.append(self.backend.forward(call))
        return list(torch.cat(found, -1).split(counts))


def wanted(dtype: str, size: int, row: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return a row's answers by the definitions in torch."""
    q, k, v = row
    blocks = -(-len(k) // BLOCK)
    cache = torch.zeros(2, blocks, BLOCK, KV_HEADS, size, dtype=torch.int8)
    scales = torch.zeros(cache.shape[:-1])
    write(rotated_keys(k), v, cache, torch.arange(len(k)), scales, bits=BITS[dtype])
    assert scales[0].signbit().float().mean() > 0.8 * len(k) / (blocks * BLOCK)
    rows = (
        torch.arange(blocks).int().view(1, -1),
        torch.tensor([0, len(k)]).int(),
        torch.tensor([len(k)]).int(),
    )
    return torch.cat(
        [
            attend(rotated_queries(q), cache, *rows, size**-0.5, window=window, scales=scales)
            for window in (None, WINDOW)
        ],
        -1,
    )


def check(kind: type[AttentionBackend], dtype: str, size: int, chunks: tuple[int, ...]) -> None:
    """Assert that a row in chunks, beside another row, is the row at once, and as defined."""
    row, other = tokens(sum(chunks), size, 7), tokens(sum(chunks), size, 8)
    (whole,) = World(kind, dtype, size).step([(0, list(row))])
    world, done, found = World(kind, dtype, size), 0, []
    for chunk in chunks:
        parts = [(1, [x[done : done + chunk] for x in row])]
        if chunk != 2:
            parts.insert(0, (0, [x[done : done + chunk] for x in other]))
        found.append(world.step(parts)[-1])
        done += chunk
    together = torch.cat(found)
    if kind is NativeCpu:
        assert torch.equal(together, whole)
    else:  # rows of one token run in another kernel, which adds up in another order
        torch.testing.assert_close(together, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(whole, wanted(dtype, size, row), rtol=2e-3, atol=2e-3)


@NEEDED
@pytest.mark.parametrize(("dtype", "size"), [("k8v4", 32), ("int4", 64), ("int4", 96)])
def test_chunks_and_neighbours_change_no_bit(dtype: str, size: int) -> None:
    check(NativeCpu, dtype, size, (37, 2, 1, 1, 199))


@pytest.mark.parametrize("dtype", PACKED)
def test_bytes_are_fewer(dtype: str) -> None:
    for size in (64, 128):
        bits = {"k8v4": 6.25, "int4": 4.75}[dtype]
        assert cell_bytes(BITS[dtype], size) == 32 * (bits * size / 8 + 4)
        assert 32 * stored_size(dtype, size) == cell_bytes(BITS[dtype], size)
        assert stored_size(dtype, size) < stored_size("int8", size)


def test_head_sizes_in_groups_of_32() -> None:
    for kind, device, dtype in ((NativeCpu, "cpu", "float32"), (TritonPaged, "cuda", "bfloat16")):
        asked = AttentionQuery(
            device=device, dtype=dtype, kv_dtype="int4", head_size=80, block_tokens=16
        )
        assert any("multiples of 32" in reason for reason in kind.why_not(asked))


@NEEDED
@pytest.mark.parametrize("dtype", sorted(BITS))
def test_a_cell_of_a_block_holds_its_tokens_alone(dtype: str) -> None:
    token, head, size = 20, 1, 64
    row = list(tokens(BLOCK, size, 3))
    other = [x.clone() for x in row]
    for part in other[1:]:
        part[token, head] *= -2
    blocks = []
    for parts in (row, other):
        world = World(NativeCpu, dtype, size, rows=1)
        world.step([(0, parts)])
        blocks.append(world.cache[int(world.table[0, 0])].flatten())
    axes = NativeCpu.kv_axes_of(dtype)
    sizes = {"cell": BLOCK // NativeCpu.cell_tokens, "head": KV_HEADS}
    changed = (blocks[0] != blocks[1]).view(*(sizes[axis] for axis in axes), -1).any(-1)
    own = {"cell": token // NativeCpu.cell_tokens, "head": head}
    assert changed.nonzero().tolist() == [[own[axis] for axis in axes]]


def test_scales_at_the_end_of_a_block_cannot_be_split_off() -> None:
    assert TritonPaged.kv_axes_of("float16") == ("kind", "cell", "head")
    assert {TritonPaged.kv_axes_of(dtype) for dtype in BITS} == {()}
