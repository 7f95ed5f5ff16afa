"""AttentionBackend: equals slow, obvious attention over every layout a step can have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import AttentionBackend, AttentionQuery, AttentionSpec
from dovetail.testing.contract import device_of, requires
from dovetail.testing.scene import Scene

HEADS = {"one": (1, 1), "full": (4, 4), "grouped": (6, 2), "single_kv": (4, 1)}
STEPS: dict[str, list[list[tuple[int, int]]]] = {
    "prefill": [[(0, 1), (1, 7), (2, 19)]],
    "decode": [[(0, 5), (1, 8), (2, 1)], [(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 1), (2, 1)]],
    "mixed": [[(0, 6), (1, 3)], [(0, 1), (2, 9), (1, 1)], [(2, 1), (0, 4), (1, 1)]],
    "chunked": [[(0, 5)], [(0, 3), (1, 2)], [(0, 8), (1, 7)], [(0, 1), (1, 1)]],
}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
PLAIN = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)


@pytest.fixture
def backend(plugin: Any) -> AttentionBackend:
    """Return the backend with its default options."""
    made: AttentionBackend = plugin(plugin.Options())
    return made


def scene(backend: AttentionBackend, spec: AttentionSpec, **changes: Any) -> Scene:
    """Return three rows over a poisoned cache; skip what the backend says it cannot do."""
    device = device_of(type(backend))
    dtype = changes.get("dtype", torch.float32)
    name = str(dtype).removeprefix("torch.")
    query = AttentionQuery(
        device=device,
        dtype=name,
        kv_dtype=name,
        head_size=spec.head_size,
        block_tokens=changes.get("block_tokens", 4),
        uses_window=spec.window_tokens is not None,
        uses_soft_cap=spec.soft_cap is not None,
    )
    reasons = backend.why_not(query)
    if reasons:
        pytest.skip("; ".join(reasons))
    return Scene(backend, spec, num_rows=3, device=device, **changes)


def compare(stage: Scene, steps: list[list[tuple[int, int]]]) -> None:
    """Run the steps; assert that backend and reference agree in each."""
    for counts in steps:
        got, wanted = stage.step(counts)
        assert got.dtype == stage.dtype
        torch.testing.assert_close(
            got.float(), wanted, rtol=0, atol=TOLERANCE[stage.dtype], equal_nan=False
        )


class TestAttentionBackend:
    """Clauses of attention backends. Every block not in use holds NaN throughout."""

    kind = "attention_backend"

    @pytest.mark.parametrize("steps", list(STEPS))
    @pytest.mark.parametrize("heads", list(HEADS))
    def test_equals_reference(self, backend: AttentionBackend, heads: str, steps: str) -> None:
        """Prefill, decode, mixed and chunked steps over several head layouts."""
        num_heads, num_kv_heads = HEADS[heads]
        spec = replace(PLAIN, num_heads=num_heads, num_kv_heads=num_kv_heads)
        compare(scene(backend, spec), STEPS[steps])

    @pytest.mark.parametrize("block_tokens", [1, 8, 16, 128])
    def test_block_sizes(self, backend: AttentionBackend, block_tokens: int) -> None:
        """Every block size of --block-size."""
        compare(scene(backend, PLAIN, block_tokens=block_tokens), STEPS["mixed"])

    @pytest.mark.parametrize("head_size", [8, 64, 80, 128, 256])
    def test_head_sizes(self, backend: AttentionBackend, head_size: int) -> None:
        """Head sizes of real models."""
        spec = replace(PLAIN, head_size=head_size, scale=head_size**-0.5)
        compare(scene(backend, spec), STEPS["mixed"])

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision(self, backend: AttentionBackend, dtype: str) -> None:
        """16-bit queries and cache, within their rounding."""
        compare(scene(backend, PLAIN, dtype=getattr(torch, dtype)), STEPS["mixed"])

    @requires("window")
    @pytest.mark.parametrize("window_tokens", [1, 3, 4, 100])
    def test_window(self, backend: AttentionBackend, window_tokens: int) -> None:
        """A query sees the last `window_tokens` positions, its own among them."""
        spec = replace(PLAIN, window_tokens=window_tokens)
        for steps in STEPS.values():
            compare(scene(backend, spec), steps)

    @requires("window")
    def test_window_leaves_old_blocks_alone(self, backend: AttentionBackend) -> None:
        """Blocks wholly outside the window may be gone: their table entries name block 0."""
        stage = scene(backend, replace(PLAIN, window_tokens=4))
        compare(stage, [[(0, 12)]])
        stage.blocks[0][0] = 0
        compare(stage, [[(0, 1)], [(0, 2)]])

    @requires("soft_cap")
    def test_soft_cap(self, backend: AttentionBackend) -> None:
        """Scores pass c * tanh(s / c)."""
        spec = replace(PLAIN, soft_cap=1.5, scale=1.0)
        for steps in STEPS.values():
            compare(scene(backend, spec), steps)

    @requires("sinks")
    def test_sinks(self, backend: AttentionBackend) -> None:
        """One more logit per head in the denominator."""
        for steps in STEPS.values():
            stage = scene(backend, PLAIN)
            stage.sinks = torch.tensor([0.5, -1.0, 3.0, 0.0])
            compare(stage, steps)

    @requires("non_causal")
    def test_non_causal(self, backend: AttentionBackend) -> None:
        """Every query sees all keys of its own row."""
        compare(scene(backend, replace(PLAIN, is_causal=False)), STEPS["prefill"])

    def test_batch_order_does_not_matter(self, backend: AttentionBackend) -> None:
        """A row's result does not depend on where it lies in the batch."""
        results = []
        for order in ((0, 1, 2), (2, 0, 1)):
            stage = scene(backend, PLAIN)
            parts = {row: stage.draw(row + 2) for row in range(3)}
            q, k, v = (torch.cat([parts[row][i] for row in order]) for i in range(3))
            got, _ = stage.step_with([(row, row + 2) for row in order], q, k, v)
            pieces = dict(zip(order, got.split([row + 2 for row in order]), strict=True))
            results.append(torch.cat([pieces[row] for row in range(3)]))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=TOLERANCE[torch.float32])

    def test_prefill_equals_decode(self, backend: AttentionBackend) -> None:
        """Tokens computed at once and one by one give the same result."""
        whole, single = scene(backend, PLAIN), scene(backend, PLAIN)
        q, k, v = whole.draw(9)
        at_once, _ = whole.step_with([(0, 9)], q, k, v)
        parts = [
            single.step_with([(0, 1)], q[i : i + 1], k[i : i + 1], v[i : i + 1])[0]
            for i in range(9)
        ]
        torch.testing.assert_close(torch.cat(parts), at_once, rtol=0, atol=TOLERANCE[torch.float32])

    def test_writes_its_own_slots_only(self, backend: AttentionBackend) -> None:
        """A step changes exactly the cells of its own tokens."""
        stage = scene(backend, PLAIN)
        stage.step([(0, 5), (1, 2)])
        numbers_before = int(stage.cache.isfinite().sum())
        kept = stage.cache.nan_to_num(nan=7.0).clone()
        stage.step([(1, 3)])
        changed = (stage.cache.nan_to_num(nan=7.0) != kept).sum().item()
        per_token = 2 * PLAIN.num_kv_heads * PLAIN.head_size
        assert changed == 3 * per_token
        assert int(stage.cache.isfinite().sum()) == numbers_before + 3 * per_token

    def test_shared_blocks(self, backend: AttentionBackend) -> None:
        """Two rows may read the same full prefix blocks."""
        stage = scene(backend, PLAIN)
        stage.step([(0, 9)])
        stage.blocks[1][:2] = stage.blocks[0][:2]
        stage.lengths[1] = 8
        compare(stage, [[(0, 1), (1, 3)], [(1, 1), (0, 1)]])

    def test_refuses_nothing_it_can_do(self, plugin: Any) -> None:
        """It fits the plainest question on a device of its own."""
        query = AttentionQuery(
            device=device_of(plugin), dtype="float32", kv_dtype="float32", head_size=64,
            block_tokens=16,
        )  # fmt: skip
        assert plugin.why_not(query) == []
