"""ActiveRequest: an unfinished request in the engine, and the steps in flight it is part of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dovetail.engine.messages import EngineRequest, RequestUpdate, Timings
from dovetail.engine.request import Request
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.executor import Executor, Loaded, PendingStep


class ActiveRequest:
    """A request from its arrival to its end, with what the engine's parts need to know of it.

    `adapter` is the name of its adapter, `kv_transfer` are its kv_transfer_params. It is queued
    once all `loads` are done. `pin` says how long after its end its prefix stays cached.
    `scheduled_s` is when it first got a row.
    """

    __slots__ = (
        *("adapter", "execute_s", "forward_s", "has_token", "kv_transfer", "loads", "pin"),
        *("request", "scheduled_s"),
    )

    def __init__(
        self,
        request: Request,
        *,
        adapter: str = "",
        kv_transfer: Mapping[str, Any] | None = None,
        pin: tuple[float, int] = (0.0, 0),
    ) -> None:
        self.request = request
        self.adapter = adapter
        self.kv_transfer = kv_transfer or {}
        self.pin = pin
        self.loads: list[Loaded] = []
        self.scheduled_s = 0.0
        self.forward_s = 0.0
        self.execute_s = 0.0
        self.has_token = False

    @classmethod
    def of(cls, message: EngineRequest, run: RunSpec) -> ActiveRequest:
        """Return the request that a message asks for."""
        request = Request(
            request_id=message.request_id,
            prompt_ids=message.prompt_ids,
            sampling=message.sampling,
            seed=message.seed,
            max_model_tokens=run.max_model_tokens,
            priority=message.priority,
            arrival_s=message.arrival_s,
            cache_salt=message.cache_salt,
            pooling=message.pooling,
            needs_whole_prompt=_needs_whole_prompt(message, run),
            parts=message.parts,
            owner=message.owner,
        )
        return cls(
            request, adapter=message.adapter, kv_transfer=message.kv_transfer, pin=message.pin
        )

    @property
    def request_id(self) -> str:
        """Return the request's id."""
        return self.request.request_id

    @property
    def is_loaded(self) -> bool:
        """Return whether nothing is being loaded for it any more."""
        return all(load.done() for load in self.loads)

    @property
    def load_error(self) -> BaseException | None:
        """Return the first error of its loads, which are done."""
        return next((error for load in self.loads if (error := load.exception())), None)

    def take_update(self, now_s: float) -> RequestUpdate:
        """Return the request's new output. Mutates: its progress"""
        request = self.request
        progress = request.take_progress()
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
            num_draft_tokens=request.num_draft_tokens,
            num_accepted_tokens=request.num_accepted_tokens,
            timings=Timings(self.scheduled_s, now_s, self.forward_s, self.execute_s),
            pooled=progress.pooled,
        )


ActiveRequests = Mapping[str, ActiveRequest]
"""The requests that the scheduler has, by id."""


def _needs_whole_prompt(message: EngineRequest, run: RunSpec) -> bool:
    """Return whether the result of a request depends on every step of its prompt."""
    if message.pooling is None:
        return False
    return run.pooling is None or message.pooling.task not in run.pooling.prefix_tasks


def crowd_of(requests: ActiveRequests) -> tuple[int, int]:
    """Return how many requests have a token, and how many wait for their first."""
    num_answered = sum(one.has_token for one in requests.values())
    return num_answered, len(requests) - num_answered


class StepInFlight:
    """A submitted step. Its result updates the times of the requests that have a row in it."""

    __slots__ = ("_participants", "_pending", "_submitted_s", "is_busy", "plan", "wait_s")

    def __init__(
        self,
        plan: StepPlan,
        requests: ActiveRequests,
        executor: Executor,
        *,
        is_busy: bool,
    ) -> None:
        rows = {row.row for row in plan.rows} if requests else ()
        self._participants = [one for one in requests.values() if one.request.row in rows]
        self.plan = plan
        self.is_busy = is_busy
        self.wait_s = 0.0
        self._submitted_s = time.monotonic()
        self._pending: PendingStep = executor.submit(plan)

    def result(self) -> StepResult:
        """Wait for the step's result. Mutates: the participants' times"""
        asked_s = time.monotonic()
        result = self._pending.result()
        now_s = time.monotonic()
        self.wait_s = now_s - asked_s
        execute_s = now_s - self._submitted_s
        for active in self._participants:
            active.forward_s += result.forward_s
            active.execute_s += execute_s
        return result
