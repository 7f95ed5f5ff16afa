"""RequestTracker: the unfinished requests of an engine, from their arrival to their last update."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.admission import Admission
from dovetail.engine.faults import as_refusal, refused
from dovetail.engine.messages import EngineRequest, RequestUpdate
from dovetail.engine.parts.part import EnginePart
from dovetail.engine.step_stats import StepCounter
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.kv_policy import KVAccounting
from dovetail.interfaces.scheduler import RequestState, Scheduler
from dovetail.registry.blame import described

logger = logging.getLogger(__name__)


class RequestTracker:
    """The requests of one engine. `active` are those with the scheduler, `admission` are those that
    wait for something to be loaded."""

    def __init__(
        self,
        active: dict[str, ActiveRequest],
        parts: Sequence[EnginePart],
        scheduler: Scheduler,
        cache: KVAccounting,
        counter: StepCounter,
        run: RunSpec,
    ) -> None:
        self.active = active
        self.admission = Admission(parts, self._schedule, self._refuse)
        self._parts = parts
        self._scheduler = scheduler
        self._cache = cache
        self._counter = counter
        self._run = run
        self._updates: list[RequestUpdate] = []

    @property
    def has_work(self) -> bool:
        """Return whether there are requests, or updates that no step has returned yet."""
        return bool(self.active or self._updates or self.admission)

    @property
    def has_updates(self) -> bool:
        """Return whether there are updates that no step has returned yet."""
        return bool(self._updates)

    def add(self, message: EngineRequest) -> None:
        """Admit or refuse a request. Mutates: self"""
        request_id = message.request_id
        if request_id in self.active or request_id in self.admission:
            error = RequestError("a request with this id is under way.", where=request_id)
            self._updates.append(refused(request_id, error))
        else:
            self.admission.add(ActiveRequest.of(message, self._run))

    def _refuse(self, active: ActiveRequest, error: BaseException) -> None:
        """Forget a request that cannot run, and report the error. Mutates: self"""
        for part in self._parts:
            part.forget(active)
        self._updates.append(refused(active.request_id, as_refusal(error)))

    def _schedule(self, active: ActiveRequest) -> None:
        """Queue a request that has everything it needs. Mutates: self"""
        try:
            self._scheduler.add(active.request)
        except RequestError as error:
            self._refuse(active, error)
        except Exception as error:  # a plugin failed on this request, for example the policy's key
            logger.exception("request %s could not be queued", active.request_id)
            fault = RequestError(f"it could not be queued: {described(error)}", status=500)
            self._refuse(active, fault)
        else:
            self.active[active.request_id] = active
            num_unfinished = sum(self._scheduler.counts())
            for part in self._parts:
                part.begin(active, num_unfinished)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; unknown ids are ignored. Mutates: self"""
        self.update(self._scheduler.abort(request_ids))
        for request_id in request_ids:
            if self.admission.abort(request_id):
                self._updates.append(RequestUpdate(request_id=request_id, finish_reason="abort"))

    def note_start(self, plan: StepPlan, now_s: float) -> None:
        """Record which requests get a row in a step. Mutates: their times"""
        for row in plan.new_rows:
            active = self.active[row.request_id]
            if active.scheduled_s:
                self._counter.preemptions += 1
            else:
                active.scheduled_s = now_s

    def update(self, requests: Iterable[RequestState]) -> None:
        """Take the new output of requests as updates, and end those that have finished. Mutates:
        self"""
        now_s = time.monotonic()
        for request in requests:
            active = self.active.get(request.request_id)
            if active is None:
                continue
            update = active.take_update(now_s)
            self._counter.count_update(active, update)
            if update.finish_reason is not None:
                update = self._end(active, update)
            self._updates.append(update)

    def _end(self, active: ActiveRequest, update: RequestUpdate) -> RequestUpdate:
        """Forget a finished request; return its last update, completed. Mutates: self"""
        for part in self._parts:
            update = part.complete_update(active, update)
        if active.pin[0] and update.finish_reason != "error":
            self._cache.pin(active.request, *active.pin)
        del self.active[active.request_id]
        for part in self._parts:
            part.end(active)
            part.forget(active)
        return update

    def take_updates(self) -> list[RequestUpdate]:
        """Return the updates since the last call. Mutates: self"""
        updates, self._updates = self._updates, []
        return updates
