"""SchedulingPolicy: keys that order requests completely, and change only if the policy says so."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_testing.fakes.objects import FakeRequest
from dovetail_testing.simulate import SimSettings, simulate

FIXED = [
    FakeRequest(request_id=f"r{number}", priority=priority, arrival_s=arrival_s,
                num_prompt_tokens=tokens, num_tokens=tokens, max_tokens=max_tokens)
    for number, (priority, arrival_s, tokens, max_tokens) in enumerate(
        itertools.product((-3, 0, 7), (0.0, 1.5, 1e9), (1, 4096), (4097, 9000))
    )
]  # fmt: skip
"""Requests as they arrive."""


def later(request: FakeRequest) -> list[FakeRequest]:
    """Return a request at several moments of its life, one after the other."""
    tokens, arrival_s = request.num_prompt_tokens, request.arrival_s
    moments: list[dict[str, Any]] = [
        {"num_prefix_tokens": tokens - 1, "now_s": arrival_s + 0.1},
        {"num_computed_tokens": tokens, "num_prefix_tokens": tokens, "now_s": arrival_s + 2.0},
        {"num_tokens": tokens + 5, "num_preemptions": 1, "now_s": arrival_s + 30.0},
        {"num_tokens": tokens + 5, "num_preemptions": 5, "now_s": arrival_s + 1e6},
    ]
    return [request, *(replace(request, **moment) for moment in moments)]


REQUESTS = [moment for request in FIXED for moment in later(replace(request, now_s=1e9))]
"""All of these may be in one queue."""


@pytest.fixture
def policy(plugin: Any) -> SchedulingPolicy:
    """Return the policy with its default options."""
    scheduling_policy: SchedulingPolicy = plugin(plugin.Options())
    return scheduling_policy


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

    def test_a_key_that_moves_is_declared(self, policy: SchedulingPolicy) -> None:
        """Without `keys_move`, a request's key is the same at every moment of its life."""
        moving = [
            request.request_id
            for request in FIXED
            if len({policy.key(moment) for moment in later(request)}) > 1
        ]
        hint = f"the keys of {moving[:3]} change later, but are asked once: set keys_move = True"
        assert policy.keys_move or not moving, hint

    def test_two_objects_agree(self, plugin: Any, policy: SchedulingPolicy) -> None:
        """A second object gives the same keys: order never depends on history."""
        second = plugin(plugin.Options())
        assert [second.key(r) for r in REQUESTS] == [policy.key(r) for r in REQUESTS]

    def test_lines_have_keys(self, policy: SchedulingPolicy) -> None:
        """With `has_lines`, lines can be the keys of a dictionary, and their own keys are finite
        numbers, as many for every line, before and after they are served, and when they reopen."""
        requests = [replace(one, owner=owner) for one in FIXED for owner in ("", "ann", "bob")]
        lines = {policy.line(request): request for request in requests}
        lengths = set()
        for _ in range(2):
            for line, request in lines.items():
                policy.opened(line, request)
                policy.served(line, 100, 0)
                policy.served(line, 0, 50)
            keys = [policy.line_key(line) for line in lines]
            assert all(math.isfinite(number) for key in keys for number in key)
            lengths |= {len(key) for key in keys}
            for line in lines:
                policy.closed(line)
        assert len(lengths) == 1

    def test_nobody_makes_way_for_itself(self, policy: SchedulingPolicy) -> None:
        """A request is not preempted for another one of the same line, of which it is the only one
        that runs: they would take turns for ever."""
        for request in FIXED:
            line = policy.line(request)
            policy.opened(line, request)
            assert not policy.makes_way(line, 1, line, 1)

    @pytest.mark.parametrize("async_steps", [False, True])
    def test_a_scheduler_works_under_it(self, policy: SchedulingPolicy, async_steps: bool) -> None:
        """With few blocks and random requests every request ends; the order is the policy's."""
        scheduler = registry.load("scheduler", "continuous")
        settings = SimSettings(num_steps=600, num_blocks=24, async_steps=async_steps)
        report = simulate(scheduler, policy, settings)
        assert sum(report.finished.values()) == report.num_arrived - report.num_refused
