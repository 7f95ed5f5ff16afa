"""SchedulingPolicy: keys that order requests completely and never change."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_testing.fakes.objects import FakeRequest
from dovetail_testing.simulate import SimSettings, simulate

REQUESTS = [
    FakeRequest(request_id=f"r{number}", priority=priority, arrival_s=arrival_s,
                num_prompt_tokens=tokens, num_tokens=tokens, num_preemptions=preemptions)
    for number, (priority, arrival_s, tokens, preemptions) in enumerate(
        itertools.product((-3, 0, 7), (0.0, 1.5, 1e9), (1, 4096), (0, 5))
    )
]  # fmt: skip


@pytest.fixture
def policy(plugin: Any) -> SchedulingPolicy:
    """Return the policy with its default options."""
    made: SchedulingPolicy = plugin(plugin.Options())
    return made


class TestSchedulingPolicy:
    """Clauses of scheduling policies."""

    kind = "scheduling_policy"

    def test_keys_are_finite_numbers(self, policy: SchedulingPolicy) -> None:
        """Every key is a tuple of finite numbers."""
        for request in REQUESTS:
            key = policy.key(request)
            assert isinstance(key, tuple)
            assert all(math.isfinite(number) for number in key)

    def test_keys_compare(self, policy: SchedulingPolicy) -> None:
        """All keys have one length, so any two of them can be compared."""
        assert len({len(policy.key(request)) for request in REQUESTS}) == 1

    def test_key_stays_while_waiting(self, policy: SchedulingPolicy) -> None:
        """Asking about other requests in between does not change a request's key."""
        before = [policy.key(request) for request in REQUESTS]
        after = [policy.key(request) for request in reversed(REQUESTS)]
        assert after[::-1] == before

    def test_two_objects_agree(self, plugin: Any, policy: SchedulingPolicy) -> None:
        """A second object gives the same keys: order never depends on history."""
        second = plugin(plugin.Options())
        assert [second.key(r) for r in REQUESTS] == [policy.key(r) for r in REQUESTS]

    @pytest.mark.parametrize("async_steps", [False, True])
    def test_a_scheduler_works_under_it(self, policy: SchedulingPolicy, async_steps: bool) -> None:
        """With few blocks and random requests every request ends; the order is the policy's."""
        scheduler = registry.load("scheduler", "continuous")
        settings = SimSettings(num_steps=600, num_blocks=24, async_steps=async_steps)
        report = simulate(scheduler, policy, settings)
        assert sum(report.finished.values()) == report.num_arrived - report.num_refused
