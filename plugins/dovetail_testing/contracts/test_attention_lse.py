"""AttentionBackend with log-sum-exps, which a cache divided over ranks needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import AttentionBackend, AttentionSpec
from dovetail_testing.attention_scenario import Scene, UsageCounter
from dovetail_testing.contract import default_options, device_of, requires, without

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_size=16, scale=0.25)
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window_tokens": 5},
    "soft_cap": {"soft_cap": 3.0},
    "chunk": {"chunk_tokens": 7},
    "alibi": {"alibi_slopes": (0.5, 0.3, 0.2, 0.1, 0.01, 0.001)},
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


class TestLogSumExps:
    """Clauses of attention backends that claim lse."""

    kind = "attention_backend"

    @requires("lse")
    @pytest.mark.parametrize("rule", RULES)
    def test_tells_log_sum_exps(self, plugin: Any, stage: Scene, rule: str) -> None:
        """For decodes and prefills, along with the attended values."""
        if rule != "plain" and rule not in plugin.capabilities:
            pytest.skip(f"does not claim {rule}")
        stage.spec = replace(SPEC, **RULES[rule])
        for counts in STEPS:
            results, wanted = stage.lse_step(counts)
            assert results[1].dtype == torch.float32
            torch.testing.assert_close(results[0], wanted[0], rtol=0, atol=MAX_DIFFERENCE)
            torch.testing.assert_close(results[1], wanted[1], rtol=0, atol=MAX_DIFFERENCE)

    @requires("lse")
    @pytest.mark.parametrize("count", [1, 9])
    def test_new_keys_may_lie_elsewhere(self, stage: Scene, count: int) -> None:
        """Queries see what their rows have in the cache, not the keys that come with them."""
        stage.step([(0, 9)])
        stage.lengths[0] -= count
        elsewhere = stage.blocks[1][0] * stage.block_tokens + torch.arange(count)
        results, wanted = stage.lse_step([(0, count)], elsewhere)
        torch.testing.assert_close(results[0], wanted[0], rtol=0, atol=MAX_DIFFERENCE)
        torch.testing.assert_close(results[1], wanted[1], rtol=0, atol=MAX_DIFFERENCE)

    @without("lse")
    def test_says_that_it_does_not(self, plugin: Any, stage: Scene) -> None:
        """A backend that claims nothing says so when it is called anyway."""
        with pytest.raises(NotImplementedError, match=plugin.__name__):
            stage.lse_step([(0, 1)])
