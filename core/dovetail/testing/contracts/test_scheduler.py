"""Scheduler: simulated without a model; every promise is checked after every step.

The simulation is `dovetail.testing.simulate`, over the real block accounting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail.testing.contract import requires
from dovetail.testing.simulate import SimReport, SimSettings, simulate

PLAIN = SimSettings(num_steps=600)
ROOMY = replace(PLAIN, num_blocks=400)
TIGHT = replace(PLAIN, num_blocks=24, max_live=30, arrival_rate=0.7)


def policy(name: str = "fcfs") -> SchedulingPolicy:
    """Return a scheduling policy by name."""
    plugin = registry.load("scheduling_policy", name)
    made: SchedulingPolicy = plugin(plugin.Options())
    return made


def run(plugin: Any, settings: SimSettings, policy_name: str = "fcfs") -> SimReport:
    """Return the report of one simulation with the plugin's default options."""
    return simulate(plugin, policy(policy_name), settings)


class TestScheduler:
    """Clauses of schedulers. Unchunked prefill is set where the plugin does not claim it."""

    kind = "scheduler"

    @pytest.mark.parametrize("seed", range(3))
    def test_keeps_every_promise(self, plugin: Any, seed: int) -> None:
        """Budgets, rows, blocks, aborts and outputs hold with random requests; all drains."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, seed=seed, uses_chunked_prefill=chunked)
        settings = settings if chunked else replace(settings, max_step_tokens=128)
        report = run(plugin, settings)
        assert sum(report.finished.values()) == report.num_arrived - report.num_refused

    @requires("chunked_prefill")
    def test_divides_long_prompts(self, plugin: Any) -> None:
        """Prompts longer than the budget are computed, in parts."""
        report = run(plugin, replace(ROOMY, max_step_tokens=8, long_prefill_tokens=4))
        assert report.finished["stop"] + report.finished["length"] > 0

    @requires("preemption")
    def test_recomputes_what_it_preempts(self, plugin: Any) -> None:
        """With few blocks requests yield, come back, and end with the same tokens."""
        report = run(plugin, TIGHT)
        assert report.num_preemptions > 0

    @requires("async_steps")
    def test_plans_one_ahead(self, plugin: Any) -> None:
        """Every promise holds when results come a step late."""
        report = run(plugin, replace(TIGHT, async_steps=True))
        assert report.num_tokens > 0

    @requires("priority")
    def test_follows_the_policy(self, plugin: Any) -> None:
        """The simulation checks the order of every plan under a policy with priorities."""
        report = run(plugin, TIGHT, "priority")
        assert report.num_tokens > 0

    def test_reuses_prefixes(self, plugin: Any) -> None:
        """Requests that begin alike find each other's blocks."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, uses_chunked_prefill=chunked, max_step_tokens=128)
        assert run(plugin, settings).num_hit_tokens > 0

    def test_several_kv_groups(self, plugin: Any) -> None:
        """Models that mix full and sliding-window layers keep every promise."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, windows=(None, 8), uses_chunked_prefill=chunked)
        run(plugin, replace(settings, max_step_tokens=128))

    def test_is_deterministic(self, plugin: Any) -> None:
        """The same arrivals give the same plans."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, uses_chunked_prefill=chunked, max_step_tokens=128)
        assert run(plugin, settings) == run(plugin, settings)
