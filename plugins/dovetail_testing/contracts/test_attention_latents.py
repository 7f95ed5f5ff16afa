"""AttentionBackend that attends latents: what multi-head latent attention needs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionSpec,
    BatchLayout,
    LatentCall,
    LatentSpec,
)
from dovetail_testing.attention_scenario import Scene, UsageCounter
from dovetail_testing.contract import default_options, device_of, requires, without
from dovetail_testing.reference import ReferenceAttention

SPEC = LatentSpec(num_heads=3, latent_size=24, rope_size=8, scale=0.25)
LAID = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=16, scale=1.0)
STEPS: list[UsageCounter] = [[(0, 5), (1, 1), (2, 40)], [(0, 1), (1, 1)], [(1, 30), (2, 1), (0, 3)]]
MAX_DIFFERENCE = 3e-5
GAP = 16


class Latents:
    """Rows over a cache of latents with strided blocks, poisoned where nothing was written."""

    def __init__(self, plugin: Any) -> None:
        self.backend: AttentionBackend = plugin(default_options(plugin))
        self.device = device_of(plugin)
        self.scene = Scene(self.backend, LAID, num_rows=3, block_tokens=16, max_row_tokens=80)
        num_blocks = 1 + max(max(blocks) for blocks in self.scene.blocks)
        memory = torch.full((num_blocks, 16 * SPEC.size + GAP), math.nan, device=self.device)
        self.memory = memory
        strides = (memory.stride(0), SPEC.size, 1)
        self.cache = memory.as_strided((num_blocks, 16, SPEC.size), strides)
        self.plain = torch.full((num_blocks, 16, SPEC.size), math.nan)
        self.random = torch.Generator().manual_seed(0)

    def step(
        self, counts: UsageCounter, *, has_sinks: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (backend, reference) of a step of random tokens, [T, H, L]. Mutates: self"""
        total = sum(count for _, count in counts)
        q = torch.randn(total, SPEC.num_heads, SPEC.size, generator=self.random)
        latent = torch.randn(total, SPEC.size, generator=self.random)
        layout = self.scene.layout(counts, "cpu")
        for row, count in counts:
            self.scene.lengths[row] += count
        given, expected_call = self.calls(q, latent, layout)
        if has_sinks:
            sinks = torch.randn(SPEC.num_heads, generator=self.random)
            given = structs.replace(given, sinks=sinks.to(self.device))
            expected_call = structs.replace(expected_call, sinks=sinks)
        found = self.backend.forward_latent(given)
        return found.cpu(), ReferenceAttention().forward_latent(expected_call)

    def calls(
        self,
        q: torch.Tensor,
        latent: torch.Tensor,
        layout: BatchLayout,
        picks: torch.Tensor | None = None,
    ) -> tuple[LatentCall, LatentCall]:
        """Return the calls of the backend and of the reference."""
        expected_call = LatentCall(
            spec=SPEC, q=q, latent=latent, cache=self.plain, prepared=layout, picks=picks
        )
        given = LatentCall(
            spec=SPEC,
            q=q.to(self.device),
            latent=latent.to(self.device),
            cache=self.cache,
            prepared=self.backend.prepare(on_device(layout, self.device)),
            picks=None if picks is None else picks.to(self.device),
        )
        return given, expected_call


def on_device(layout: BatchLayout, device: str) -> BatchLayout:
    """Return a layout whose tensors are on a device."""
    names = ("query_start", "seq_lens", "block_table", "slots")
    return replace(layout, **{name: getattr(layout, name).to(device) for name in names})


class TestLatents:
    """Clauses of attention backends that claim latent."""

    kind = "attention_backend"

    @requires("latent")
    def test_latents_equal_the_definition(self, plugin: Any) -> None:
        """Decodes and prefills of rows that begin and continue, in strided blocks; with sinks."""
        rows = Latents(plugin)
        for counts, has_sinks in zip([*STEPS, [(1, 2), (2, 1)]], [False] * 3 + [True], strict=True):
            found, wanted = rows.step(counts, has_sinks=has_sinks)
            assert found.shape == wanted.shape
            torch.testing.assert_close(found, wanted, rtol=0, atol=MAX_DIFFERENCE)

    @requires("latent")
    def test_latents_are_written_alone(self, plugin: Any) -> None:
        """The cache has what was passed, and nothing outside of the step's slots is written."""
        rows = Latents(plugin)
        for counts in STEPS:
            rows.step(counts)
        torch.testing.assert_close(rows.cache.cpu(), rows.plain, rtol=0, atol=0, equal_nan=True)
        assert bool(rows.memory[:, -GAP:].isnan().all())

    @requires("latent")
    def test_tells_a_step_s_layout(self, plugin: Any) -> None:
        """Layers that attend long rows in another way find the rows by it."""
        rows = Latents(plugin)
        layout = on_device(rows.scene.layout([(0, 5), (1, 1)], "cpu"), rows.device)
        assert rows.backend.layout_of(rows.backend.prepare(layout)) is layout

    @without("latent")
    def test_says_that_it_attends_none(self, plugin: Any) -> None:
        """A backend that claims nothing says so when it is called anyway."""
        with pytest.raises(NotImplementedError, match=plugin.__name__):
            Latents(plugin).step([(0, 1)])
