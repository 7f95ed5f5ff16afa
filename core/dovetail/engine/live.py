"""Live: an unfinished request in the engine, and the steps in flight that it is part of.

`transfer` is its kv_transfer_params. Its prefix stays cached for `pin_s` seconds after its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dovetail.engine.adapters import AdapterHolder
from dovetail.engine.elsewhere import Elsewhere
from dovetail.engine.messages import RequestUpdate, Timings
from dovetail.engine.request import Request
from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.executor import Executor, PendingStep

DONE = ("stop", "length")


class Live:
    """An unfinished request, the adapter it holds, and when it first got a row."""

    __slots__ = (
        *("execute_s", "forward_s", "has_token", "holder", "request", "scheduled_s"),
        *("pin_s", "transfer"),
    )

    def __init__(
        self,
        request: Request,
        holder: AdapterHolder | None,
        transfer: Mapping[str, Any] | None = None,
        pin_s: float = 0.0,
    ) -> None:
        self.request = request
        self.holder = holder
        self.transfer = transfer or {}
        self.pin_s = pin_s
        self.scheduled_s = 0.0
        self.forward_s = 0.0
        self.execute_s = 0.0
        self.has_token = False


def crowd_of(live: Mapping[str, Live]) -> tuple[int, int]:
    """Return how many requests have a token, and how many wait for their first."""
    num_answered = sum(one.has_token for one in live.values())
    return num_answered, len(live) - num_answered


class StepInFlight:
    """A submitted step; its result updates the times of its requests."""

    __slots__ = ("_participants", "_pending", "_submitted_s", "is_busy", "plan", "wait_s")

    def __init__(
        self, plan: StepPlan, participants: tuple[Live, ...], executor: Executor, *, is_busy: bool
    ) -> None:
        self.plan = plan
        self.is_busy = is_busy
        self.wait_s = 0.0
        self._participants = participants
        self._submitted_s = time.monotonic()
        self._pending: PendingStep = executor.submit(plan)

    def result(self) -> StepResult:
        """Wait for the step's result. Mutates: the participants' times"""
        asked_s = time.monotonic()
        result = self._pending.result()
        now_s = time.monotonic()
        self.wait_s = now_s - asked_s
        execute_s = now_s - self._submitted_s
        for live in self._participants:
            live.forward_s += result.forward_s
            live.execute_s += execute_s
        return result


def update_of(live: Live, now_s: float, elsewhere: Elsewhere | None = None) -> RequestUpdate:
    """Return a request's new output. At its end this includes, if requested, how another engine
    continues it. Mutates: its progress"""
    request = live.request
    progress = request.take_progress()
    transfer = None
    if live.transfer and elsewhere is not None and request.finish_reason in DONE:
        transfer = elsewhere.ticket(request, live.transfer)
    return RequestUpdate(
        request_id=request.request_id,
        token_ids=progress.token_ids,
        logprobs=progress.logprobs,
        prompt_logprobs=progress.prompt_logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=request.error if request.finish_reason == "error" else None,
        error_status=request.error_status,
        num_cached_tokens=max(0, request.num_cached_tokens - request.num_virtual_tokens),
        timings=Timings(live.scheduled_s, now_s, live.forward_s, live.execute_s),
        pooled=progress.pooled,
        transfer=transfer,
    )
