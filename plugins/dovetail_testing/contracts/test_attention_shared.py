"""AttentionBackend that reads what another layer wrote: what layers that share a cache need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import AttentionBackend, AttentionSpec, BatchLayout
from dovetail_testing.attention_scenario import Scene, UsageCounter
from dovetail_testing.contract import default_options, device_of, requires, without

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_size=16, scale=0.25)
OTHER_HEADS = replace(SPEC, num_heads=2, scale=0.5)
"""The layer that reads: its queries are its own, and may be of another number."""
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window_tokens": 5},
    "soft_cap": {"soft_cap": 3.0},
    "chunk": {"chunk_tokens": 7},
    "alibi": {"alibi_slopes": (0.5, 0.3)},
}
STEPS: list[UsageCounter] = [[(0, 5), (1, 1), (2, 40)], [(0, 1), (1, 1)], [(1, 30), (2, 1), (0, 3)]]
MAX_DIFFERENCE = 3e-5


@pytest.fixture
def stage(plugin: Any) -> Scene:
    """Return rows over a poisoned cache of the backend."""
    backend: AttentionBackend = plugin(default_options(plugin))
    return Scene(
        backend, SPEC, num_rows=3, block_tokens=16, max_row_tokens=80, device=device_of(plugin)
    )


def last_of_rows(layout: BatchLayout, rows: list[int]) -> BatchLayout:
    """Return a layout of the last tokens of some rows, which writes nothing."""
    index = torch.tensor(rows, device=layout.block_table.device)
    count = len(rows)
    starts = torch.arange(count + 1, dtype=torch.int32, device=layout.block_table.device)
    lens = [layout.seq_lens_host[row] for row in rows]
    return BatchLayout(
        query_start=starts,
        seq_lens=layout.seq_lens[index],
        block_table=layout.block_table[index],
        slots=layout.slots[:0],
        query_start_host=list(range(count + 1)),
        seq_lens_host=lens,
        block_tokens=layout.block_tokens,
        max_query_tokens=1,
        max_seq_tokens=max(lens),
    )


class TestSharedCaches:
    """Clauses of attention backends that claim shared."""

    kind = "attention_backend"

    @requires("shared")
    @pytest.mark.parametrize("rule", RULES)
    def test_reads_what_another_layer_wrote(self, plugin: Any, stage: Scene, rule: str) -> None:
        """In decodes and prefills, with heads of another number, and writes nothing."""
        if rule != "plain" and rule not in plugin.capabilities:
            pytest.skip(f"does not claim {rule}")
        reading = replace(OTHER_HEADS, **RULES[rule])
        for counts in STEPS:
            before = [stage.layout(counts, device) for device in (stage.device, "cpu")]
            stage.step(counts)
            written = stage.cache.clone()
            q = torch.randn(len(before[0].slots), 2, 16, generator=stage.random)
            found, wanted = stage.read(reading, q, *before)
            torch.testing.assert_close(found, wanted, rtol=0, atol=MAX_DIFFERENCE)
            torch.testing.assert_close(stage.cache, written, rtol=0, atol=0, equal_nan=True)

    @requires("shared")
    def test_queries_may_be_fewer(self, stage: Scene) -> None:
        """The last tokens of some rows see all that their rows have."""
        counts = STEPS[0]
        layouts = [stage.layout(counts, device) for device in (stage.device, "cpu")]
        stage.step(counts)
        fewer = [last_of_rows(layout, [2, 0]) for layout in layouts]
        q = torch.randn(2, 2, 16, generator=stage.random)
        found, wanted = stage.read(OTHER_HEADS, q, *fewer)
        torch.testing.assert_close(found, wanted, rtol=0, atol=MAX_DIFFERENCE)

    @without("shared")
    def test_says_that_it_does_not_share(self, plugin: Any, stage: Scene) -> None:
        """A backend that claims nothing says so when it is called anyway."""
        counts: UsageCounter = [(0, 1)]
        layouts = [stage.layout(counts, device) for device in (stage.device, "cpu")]
        with pytest.raises(NotImplementedError, match=plugin.__name__):
            stage.read(OTHER_HEADS, torch.zeros(1, 2, 16), *layouts)
