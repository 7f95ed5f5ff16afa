"""AttentionBackend that attends to the latents which an indexer picks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import IndexCall, IndexSpec
from dovetail_testing.contract import requires, without
from dovetail_testing.contracts.test_attention_latents import (
    MAX_DIFFERENCE,
    SPEC,
    STEPS,
    Latents,
    on_device,
)
from dovetail_testing.reference import ReferenceAttention

INDEX = IndexSpec(num_heads=3, head_size=16, num_picked=7)


def eighths(*shape: int, random: torch.Generator) -> torch.Tensor:
    """Return numbers whose sums of products are exact, so that equal scores are equal."""
    return (torch.randn(*shape, generator=random) * 2).round() / 8


class TestIndexed:
    """Clauses of attention backends that claim indexed."""

    kind = "attention_backend"

    @requires("indexed")
    def test_picks_equal_the_definition(self, plugin: Any) -> None:
        """The highest scores (of equal ones the earliest) in ascending order, followed by -1."""
        rows = Latents(plugin)
        keys = eighths(*rows.plain.shape[:2], INDEX.head_size, random=rows.random)
        for counts in STEPS:
            total = sum(count for _, count in counts)
            layout = rows.scene.layout(counts, "cpu")
            for row, count in counts:
                rows.scene.lengths[row] += count
            q = eighths(total, INDEX.num_heads, INDEX.head_size, random=rows.random)
            weights = eighths(total, INDEX.num_heads, random=rows.random)
            prepared, there = rows.backend.prepare(on_device(layout, rows.device)), rows.device
            given = IndexCall(
                spec=INDEX,
                q=q.to(there),
                weights=weights.to(there),
                keys=keys.to(there),
                prepared=prepared,
            )
            expected_call = IndexCall(spec=INDEX, q=q, weights=weights, keys=keys, prepared=layout)
            found, wanted = rows.backend.pick(given), ReferenceAttention().pick(expected_call)
            assert found.dtype is torch.int32
            assert torch.equal(found.cpu(), wanted)

    @requires("indexed")
    def test_picked_latents_alone_are_attended_to(self, plugin: Any) -> None:
        """Decodes and prefills, with fewer tokens than are picked, and with more."""
        rows = Latents(plugin)
        for counts in STEPS:
            total = sum(count for _, count in counts)
            layout = rows.scene.layout(counts, "cpu")
            for row, count in counts:
                rows.scene.lengths[row] += count
            q = torch.randn(total, SPEC.num_heads, SPEC.size, generator=rows.random)
            latent = torch.randn(total, SPEC.size, generator=rows.random)
            picks = self._some(layout, rows.random)
            given, expected_call = rows.calls(q, latent, layout, picks)
            found = rows.backend.forward_picked(given)
            wanted = ReferenceAttention().forward_picked(expected_call)
            torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=MAX_DIFFERENCE)
        torch.testing.assert_close(rows.cache.cpu(), rows.plain, rtol=0, atol=0, equal_nan=True)

    def _some(self, layout: Any, random: torch.Generator) -> torch.Tensor:
        """Return random picks of each token. Shapes: [T, K] int32"""
        picks = torch.full((layout.query_start_host[-1], INDEX.num_picked), -1, dtype=torch.int32)
        for row, length in enumerate(layout.seq_lens_host):
            end = layout.query_start_host[row + 1]
            for token in range(layout.query_start_host[row], end):
                order = torch.randperm(length - (end - 1 - token), generator=random)
                found = order[: INDEX.num_picked].sort().values
                picks[token, : len(found)] = found.int()
        return picks

    @without("indexed")
    def test_says_that_it_picks_nothing(self, plugin: Any) -> None:
        """A backend that claims nothing says so when it is called anyway."""
        rows = Latents(plugin)
        layout = on_device(rows.scene.layout([(0, 1)], "cpu"), rows.device)
        one = torch.zeros(1, 3, 16, device=rows.device)
        prepared = rows.backend.prepare(layout)
        with pytest.raises(NotImplementedError, match=plugin.__name__):
            rows.backend.pick(
                IndexCall(
                    spec=INDEX, q=one, weights=one[..., 0], keys=rows.cache, prepared=prepared
                )
            )
