"""AttentionBackend over the life of a cache: block and head sizes, chunks, shared and gone blocks.

Steps follow each other over one poisoned cache (`dovetail_testing.attention_scenario`), compared
with slow attention after each; single steps are in `test_attention_backend`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionQuery,
    AttentionSpec,
    BatchLayout,
)
from dovetail_testing.attention_scenario import Scene, UsageCounter
from dovetail_testing.contract import device_of, requires, without

HEADS = {"one": (1, 1), "full": (4, 4), "grouped": (6, 2), "single_kv": (4, 1)}
STEPS: dict[str, list[UsageCounter]] = {
    "decode": [[(0, 5), (1, 8), (2, 1)], [(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 1), (2, 1)]],
    "mixed": [[(0, 6), (1, 3)], [(0, 1), (2, 9), (1, 1)], [(2, 1), (0, 4), (1, 1)]],
    "chunked": [[(0, 5)], [(0, 3), (1, 2)], [(0, 8), (1, 7)], [(0, 1), (1, 1)]],
}
FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
KV_SCALES = {"ones": (1.0, 1.0), "tight": (0.01, 0.004), "wide": (40.0, 9.0)}
ROUNDED = 2.0**-6
MAX_DIFFERENCE = 2e-5
GAP = 96
"""Numbers between two blocks, in bytes a multiple of 64."""
PLAIN = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)


@pytest.fixture
def backend(plugin: Any) -> AttentionBackend:
    """Return the backend with its default options."""
    attention: AttentionBackend = plugin(plugin.Options())
    return attention


def scene(
    backend: AttentionBackend,
    spec: AttentionSpec,
    block_tokens: int = 4,
    kv_dtype: torch.dtype = torch.float32,
) -> Scene:
    """Return three rows over a poisoned cache; skip settings that the backend rejects."""
    device = device_of(type(backend))
    query = AttentionQuery(
        device=device,
        dtype="float32",
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        head_size=spec.head_size,
        block_tokens=block_tokens,
        uses_window=spec.window_tokens is not None,
        uses_chunk=spec.chunk_tokens is not None,
        uses_alibi=spec.alibi_slopes is not None,
    )
    reasons = backend.why_not(query)
    if reasons:
        pytest.skip("; ".join(reasons))
    return Scene(
        backend, spec, num_rows=3, block_tokens=block_tokens, kv_dtype=kv_dtype, device=device
    )


def compare(stage: Scene, steps: list[UsageCounter]) -> None:
    """Run the steps; assert that backend and reference agree in each."""
    for counts in steps:
        got, wanted = stage.step(counts)
        torch.testing.assert_close(got, wanted, rtol=0, atol=MAX_DIFFERENCE)


def over_8_bit_floats(
    backend: AttentionBackend, kv_dtype: str, scales: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each step's actual and expected result, over a cache of 8-bit floats with scales."""
    k_scale, v_scale = KV_SCALES[scales]
    spec = replace(PLAIN, k_scale=k_scale, v_scale=v_scale)
    stage = scene(backend, spec, 16, FLOAT8[kv_dtype])
    for counts in STEPS["mixed"] + STEPS["decode"][1:]:
        q, k, v = stage.draw(sum(count for _, count in counts))
        yield stage.step_with(counts, q, k * 3, v * 3)


class TestAttentionLayouts:
    """Clauses of attention backends."""

    kind = "attention_backend"

    @pytest.mark.parametrize("steps", list(STEPS))
    @pytest.mark.parametrize("heads", list(HEADS))
    def test_steps_follow_each_other(
        self, backend: AttentionBackend, heads: str, steps: str
    ) -> None:
        """Decodes, mixed and chunked steps over several head layouts."""
        num_heads, num_kv_heads = HEADS[heads]
        spec = replace(PLAIN, num_heads=num_heads, num_kv_heads=num_kv_heads)
        compare(scene(backend, spec), STEPS[steps])

    @pytest.mark.parametrize("block_tokens", [1, 8, 16, 128])
    def test_block_sizes(self, backend: AttentionBackend, block_tokens: int) -> None:
        """Every block size of --block-size, except those it rejects."""
        compare(scene(backend, PLAIN, block_tokens), STEPS["mixed"])

    @pytest.mark.parametrize("head_size", [8, 64, 80, 128, 256])
    def test_head_sizes(self, backend: AttentionBackend, head_size: int) -> None:
        """Head sizes of real models, except those it rejects."""
        spec = replace(PLAIN, head_size=head_size, scale=head_size**-0.5)
        compare(scene(backend, spec), STEPS["mixed"])

    @requires("window")
    @pytest.mark.parametrize("window_tokens", [1, 3, 4, 100])
    def test_window_over_steps(self, backend: AttentionBackend, window_tokens: int) -> None:
        """Windows shorter than a step, than a block, and longer than everything."""
        for steps in STEPS.values():
            compare(scene(backend, replace(PLAIN, window_tokens=window_tokens)), steps)

    @requires("chunk")
    @pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 100])
    def test_chunks_over_steps(self, backend: AttentionBackend, chunk_tokens: int) -> None:
        """Chunks count from a row's first token, wherever a step begins."""
        for steps in STEPS.values():
            compare(scene(backend, replace(PLAIN, chunk_tokens=chunk_tokens)), steps)

    @requires("alibi")
    @pytest.mark.parametrize("steps", list(STEPS))
    def test_alibi_over_steps(self, backend: AttentionBackend, steps: str) -> None:
        """Distances are within the row, wherever its tokens are in a step."""
        compare(scene(backend, replace(PLAIN, alibi_slopes=(0.5, 0.3, 0.2, 0.01))), STEPS[steps])

    @requires("window")
    def test_blocks_outside_the_window_may_go(self, backend: AttentionBackend) -> None:
        """A block wholly outside the window is not read: its entry may name block 0."""
        stage = scene(backend, replace(PLAIN, window_tokens=4))
        compare(stage, [[(0, 12)]])
        stage.blocks[0][0] = 0
        compare(stage, [[(0, 1)], [(0, 2)]])

    def test_shared_blocks(self, backend: AttentionBackend) -> None:
        """Two rows may read the same full prefix blocks."""
        stage = scene(backend, PLAIN)
        stage.step([(0, 9)])
        stage.blocks[1][:2] = stage.blocks[0][:2]
        stage.lengths[1] = 8
        compare(stage, [[(0, 1), (1, 3)], [(1, 1), (0, 1)]])

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
    def test_rows_read_what_others_write(
        self, backend: AttentionBackend, order: tuple[int, ...]
    ) -> None:
        """Drafts are rows that share blocks: each sees the tokens of this step before it."""
        stage = scene(backend, PLAIN)
        stage.step([(0, 6)])
        stage.blocks[1] = stage.blocks[2] = stage.blocks[0]
        stage.lengths = [6, 7, 8]
        compare(stage, [[(row, 1) for row in order]])

    @without("bf16_products")
    @pytest.mark.parametrize("scales", list(KV_SCALES))
    @pytest.mark.parametrize("kv_dtype", list(FLOAT8))
    def test_8_bit_floats_count_times_their_scale(
        self, backend: AttentionBackend, kv_dtype: str, scales: str
    ) -> None:
        """Quotients by the spec's scales are stored, clamped to the type's range."""
        for got, wanted in over_8_bit_floats(backend, kv_dtype, scales):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=MAX_DIFFERENCE)

    @requires("bf16_products")
    @pytest.mark.parametrize("scales", list(KV_SCALES))
    @pytest.mark.parametrize("kv_dtype", list(FLOAT8))
    def test_8_bit_floats_beside_rounded_queries(
        self, backend: AttentionBackend, kv_dtype: str, scales: str
    ) -> None:
        """The same to within what bfloat16 keeps, which is 8 bits."""
        for got, wanted in over_8_bit_floats(backend, kv_dtype, scales):
            allowed = ROUNDED * float(wanted.abs().max())
            torch.testing.assert_close(got, wanted, rtol=0, atol=allowed)

    def test_freed_blocks_serve_another_row(self, backend: AttentionBackend) -> None:
        """A row that takes over another's blocks sees nothing of their old content."""
        stage = scene(backend, PLAIN)
        stage.step([(0, 17)])
        stage.blocks[2] = stage.blocks[0][::-1]
        compare(stage, [[(2, 6)], [(2, 1)], [(2, 7)]])

    def test_batch_order_does_not_matter(self, backend: AttentionBackend) -> None:
        """A row's result does not depend on its place in a batch of prefills."""
        results = []
        for order in ((0, 1, 2), (2, 0, 1)):
            stage = scene(backend, PLAIN)
            parts = {row: stage.draw(row + 2) for row in range(3)}
            q, k, v = (torch.cat([parts[row][i] for row in order]) for i in range(3))
            got, _ = stage.step_with([(row, row + 2) for row in order], q, k, v)
            pieces = dict(zip(order, torch.split(got, [row + 2 for row in order]), strict=True))
            results.append(torch.cat([pieces[row] for row in range(3)]))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=MAX_DIFFERENCE)

    def test_blocks_may_lie_apart(self, backend: AttentionBackend) -> None:
        """If other layers' blocks are larger, each block of this one begins where theirs do."""
        stage = scene(backend, PLAIN, 16)
        stage.lay_apart(GAP)
        compare(stage, STEPS["mixed"] + STEPS["decode"][1:])

    def test_fits_the_plainest_question(self, plugin: Any) -> None:
        """It fits float32 on one of its devices."""
        query = AttentionQuery(
            device=device_of(plugin),
            dtype="float32",
            kv_dtype="float32",
            head_size=64,
            block_tokens=16,
        )
        assert plugin.why_not(query) == []

    @requires("cross")
    @pytest.mark.parametrize("counts", [(1, 1, 1), (3, 1, 9)], ids=["decode", "mixed"])
    def test_queries_see_another_sequence(
        self, backend: AttentionBackend, counts: tuple[int, ...]
    ) -> None:
        """Each query sees all that was written for its row, however many queries there are."""
        size, lens, device = 16, (5, 20, 1), device_of(type(backend))
        spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_size=16, scale=0.25, is_causal=False)
        query = AttentionQuery(
            device=device, dtype="float32", kv_dtype="float32", head_size=16, block_tokens=size,
            uses_cross=True,
        )  # fmt: skip
        reasons = backend.why_not(query)
        if reasons:
            pytest.skip("; ".join(reasons))
        draw = torch.Generator().manual_seed(1)
        k, v = (torch.randn(sum(lens), 2, 16, generator=draw) for _ in range(2))
        q = torch.randn(sum(counts), 2, 16, generator=draw)
        table = torch.tensor([[3, 0], [1, 4], [2, 0]], dtype=torch.int32)
        slots = [int(table[r, i // size]) * size + i % size for r, n in enumerate(lens)
                 for i in range(n)]  # fmt: skip
        cache = torch.full(backend.kv_shape(5, size, 2, 16), float("nan")).to(device)
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        for written in (slots, []):  # a later step writes nothing
            layout = BatchLayout(
                query_start=torch.tensor(starts, dtype=torch.int32, device=device),
                seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
                block_table=table.to(device),
                slots=torch.tensor(written, dtype=torch.int64, device=device),
                query_start_host=starts,
                seq_lens_host=list(lens),
                block_tokens=size,
                max_query_tokens=max(counts),
                max_seq_tokens=max(lens),
            )
            own_k, own_v = (x[: len(written)].to(device) for x in (k, v))
            call = AttentionCall(
                spec=spec, q=q.to(device), k=own_k, v=own_v, cache=cache,
                prepared=backend.prepare(layout),
            )  # fmt: skip
            got = backend.forward_cross(call)
            rows = (torch.split(x, list(n)) for x, n in ((q, counts), (k, lens), (v, lens)))
            wanted = []
            for queries, keys, values in zip(*rows, strict=True):
                scores = torch.einsum("thd,shd->hts", queries, keys) * spec.scale
                wanted.append(torch.einsum("hts,shd->thd", scores.softmax(-1), values))
            torch.testing.assert_close(got.cpu(), torch.cat(wanted), rtol=0, atol=MAX_DIFFERENCE)
