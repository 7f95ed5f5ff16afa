"""Deliberately wrong policies whose keys move, and schedulers that do not follow such."""

from __future__ import annotations

import itertools
import math
from typing import Any

from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import KVCache
from dovetail.interfaces.scheduling_policy import RequestNow, RequestView, SchedulingPolicy
from dovetail_plugins.schedulers.continuous import ContinuousScheduler
from dovetail_testing.fakes.objects import view_of


class RightMoving(SchedulingPolicy):
    """Nothing is wrong with it: the least remaining work goes first."""

    info = Info(summary="least remaining work first")
    keys_move = True

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return how many tokens are left at most."""
        return (float(request.max_tokens - request.num_prefix_tokens),)


class UndeclaredKeys(RightMoving):
    """Does not say that its keys move, so that it sees zeros."""

    info = Info(summary="least remaining work first, as it seems")
    keys_move = False


class UndeclaredAge(SchedulingPolicy):
    """Reads the clock, and is asked once."""

    info = Info(summary="who waits long goes first, as it seems")

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return 0 for a request that has waited for a second."""
        return (float(request.now_s - request.arrival_s < 1.0),)


class RaggedLater(RightMoving):
    """A preempted request has a longer key."""

    info = Info(summary="ragged keys later on")

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return two numbers after a preemption."""
        return (request.arrival_s,) * (1 + (request.num_preemptions > 0))


class InfiniteLater(RightMoving):
    """The key of a request that has waited long is infinite."""

    info = Info(summary="infinite keys later on")

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return minus infinity after a day."""
        return (-math.inf if request.now_s - request.arrival_s > 86_400 else 0.0,)


class CountingKeys(RightMoving):
    """A key moves with every question, and not with the request."""

    info = Info(summary="counts questions")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._count = itertools.count()

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return another number each time."""
        return (float(next(self._count)),)


class CrashingLater(RightMoving):
    """Cannot answer for a request that has drawn tokens."""

    info = Info(summary="divides by nothing")

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Divide by what is left of the prompt."""
        left = request.num_prompt_tokens - request.num_computed_tokens
        return (1.0 / left if 0 <= left < 4 else 0.0,)


class Blind(SchedulingPolicy):
    """Hides from a policy what is in the prefix cache."""

    info = Info(summary="hides the prefix cache")

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.keys_move = policy.keys_move  # type: ignore[misc]
        self._policy = policy

    def key(self, request: Any) -> tuple[float, ...]:
        """Return the policy's key of a request without a prefix."""
        return self._policy.key(view_of(request, max_tokens=request.max_tokens))


class BlindScheduler(ContinuousScheduler):
    """Shows policies zeros."""

    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        super().__init__(options, spec, cache, Blind(policy))


class SettledScheduler(ContinuousScheduler):
    """Asks a policy once, even if its keys move."""

    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        super().__init__(options, spec, cache, policy)
        self._keys.move = False


class ListedLines(RightMoving):
    keys_move = False
    has_lines = True

    def key(self, request: RequestView) -> tuple[float, ...]:
        return (request.arrival_s,)

    def line(self, request: RequestView) -> Any:
        return [request.owner]


class EndlessLines(ListedLines):
    def line(self, request: RequestView) -> Any:
        return request.owner

    def line_key(self, line: Any) -> tuple[float, ...]:
        return (float("inf"),)


class RestlessLines(EndlessLines):
    def line_key(self, line: Any) -> tuple[float, ...]:
        return (0.0,)

    def makes_way(self, line: Any, num_running: int, other: Any, num_other: int) -> bool:
        return True
