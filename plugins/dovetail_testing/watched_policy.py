"""WatchedPolicy: a scheduling policy in a simulation, which notes what it is shown and answers.

It has the simulation's time, not the machine's, so that a simulation does not depend on its pace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from dovetail.engine.request import NO_ROW, Request
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import KVCache
from dovetail.interfaces.scheduling_policy import RequestNow, SchedulingPolicy
from dovetail_testing.fakes.objects import FakeRequest, view_of


class WatchedPolicy(SchedulingPolicy):
    """Hands questions on to another policy. `fault`: what went wrong first, None so far."""

    info: ClassVar[Info] = Info(summary="hands questions on to another policy")

    def __init__(
        self,
        policy: SchedulingPolicy,
        cache: KVCache,
        request_of: Callable[[str], Request],
        now_s: Callable[[], float],
    ) -> None:
        self.keys_move = policy.keys_move  # type: ignore[misc]
        self.has_lines = policy.has_lines  # type: ignore[misc]
        for name in ("line", "line_key", "opened", "closed", "served", "makes_way"):
            setattr(self, name, getattr(policy, name))
        self._policy = policy
        self._cache = cache
        self._request_of = request_of
        self._now_s = now_s
        self.fault: str | None = None
        self._keys: dict[str, tuple[float, ...]] = {}
        self._first_keys: dict[str, tuple[float, ...]] = {}

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return the policy's key."""
        try:
            key = self._policy.key(self._checked(request) if self.keys_move else request)
        except Exception as error:
            self.fault = self.fault or f"{request.request_id}: {type(error).__name__}: {error}"
            raise
        self._keys[request.request_id] = key
        self._first_keys.setdefault(request.request_id, key)
        return key

    def _checked(self, request: RequestNow) -> FakeRequest:
        """Return the request at the simulation's time. Raises: AssertionError for untrue numbers"""
        true = self._true(request.request_id)
        for name in FakeRequest.__dataclass_fields__:
            seen, wanted = getattr(request, name), getattr(true, name)
            is_true = seen <= wanted if name == "max_tokens" else seen == wanted
            assert is_true or name == "now_s", f"the policy sees {name} {seen}, it is {wanted}"
        return true

    def _true(self, request_id: str) -> FakeRequest:
        """Return a request as a policy must see it."""
        request = self._request_of(request_id)
        num_prefix_tokens = request.num_computed_tokens
        if request.row == NO_ROW:
            found = self._cache.find_prefix(request), self._cache.find_swapped(request)
            num_prefix_tokens = max(found)
        return view_of(
            request,
            max_tokens=request.max_tokens,
            num_prefix_tokens=num_prefix_tokens,
            now_s=self._now_s(),
        )

    def begin_plan(self) -> None:
        """Forget which requests were asked about. Mutates: self"""
        self._first_keys.clear()

    def was_asked(self, request: Request) -> bool:
        """Return whether the request's key is of this plan, or need not be."""
        return not self.keys_move or request.request_id in self._first_keys

    def order(self, request: Request, *, was_running: bool = False) -> tuple[float, ...]:
        """Return the request's last key. `was_running`: the one it had before it was preempted."""
        keys = self._first_keys if was_running and self.keys_move else self._keys
        return tuple(keys[request.request_id])

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended. Mutates: self"""
        self._keys.pop(request_id, None)
        self._first_keys.pop(request_id, None)
