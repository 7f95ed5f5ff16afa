"""Drafting: when to request drafts and how long, depending on how many are accepted.

Sets `draft_ids` of requests between two steps; the scheduler plans them and the runner verifies
them. A drafter on the worker runs as part of the previous step, and `num_wanted_drafts` requests
the number of tokens. If a drafter fails, a request only loses its drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.parts.draft_price import LEAST_WORTH, DraftPrice
from dovetail.engine.parts.part import EnginePart, StepRecord
from dovetail.engine.request import RUNNING
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.data.spec import DraftSpec, ModelSpec
from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.scheduler import RequestState
from dovetail.registry.blame import described

logger = logging.getLogger(__name__)

FREE_MISSES = 3
MAX_PAUSE_TOKENS = 16
FIRST_PAUSE, LATER_PAUSE, LONGEST_PAUSE = 4, 32, 128
"""Pauses of a drafter on the worker, in tokens: the first if drafts used to pay, the first if they
did not, and the longest."""
LONGEST_BETWEEN = 256
"""The maximum number of engine steps between two trials, across all requests."""
NEWEST_SHARE, FIRST_SHARE = 1 / 16, 1 / 4
"""Learning rate of the average worth of drafts, separately for greedy and other requests: minimum,
and initial for the first drafts."""
PLAIN_EVERY = 8
"""While nothing is drafted, every PLAIN_EVERY-th step is timed and checked."""
STEPS_UNDER_WAY = 8
"""More than the steps ever planned ahead: after this many without drafts, none is in flight."""
FOREIGN = "an id outside the vocabulary"


class _AdaptiveDraftLength:
    """Adapts a request's maximum draft length to how many draft tokens are accepted.

    Starts at the maximum. A draft without an accepted token is a miss and halves the length (at
    least 1). After the fourth miss in a row drafting pauses for one token, after the fifth for two,
    and so on up to 16. A draft with an accepted token doubles the length and clears the misses.
    `max_tokens` 0: the drafter failed for this request and is not used again.
    """

    __slots__ = ("max_tokens", "num_accepted", "num_drafted", "num_misses", "paused_until")
    is_trying = False

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_misses = 0
        self.paused_until = 0

    def record(
        self, num_drafted: int, num_accepted: int, num_tokens: int, longest: int, min_worth: float
    ) -> None:
        """Record a draft's outcome; `min_worth` is the worth at which drafts pay. Mutates: self"""
        if num_accepted:
            self.num_misses = 0
            self.max_tokens = min(longest, 2 * self.max_tokens)
            return
        self.num_misses += 1
        self.max_tokens = max(1, self.max_tokens // 2)
        num_paused = min(self.num_misses - FREE_MISSES, MAX_PAUSE_TOKENS)
        self.paused_until = num_tokens + max(0, num_paused)


class _PricedDraftLength(_AdaptiveDraftLength):
    """The same for a drafter with a compute cost: a draft must be worth its price.

    `worth` is a moving average of accepted tokens per draft, with weight 1/4 for the latest. It
    starts at the average of other requests. Drafts are up to twice as long, plus one. Below
    `min_worth`, the cost of a step with drafts (`DraftPrice.least_worth`), drafting pauses for 4
    tokens, then tries one. If that fails, the next pause is twice as long, up to 128; if it is
    accepted, longer drafts are tried. A request that starts while drafts do not pay tries one token
    first, and pauses for 32 if that fails.
    """

    __slots__ = ("is_trying", "num_paused", "worth")

    def __init__(self, max_tokens: int, worth: float, min_worth: float) -> None:
        super().__init__(max_tokens)
        self.worth = worth
        self.num_paused, self.is_trying = FIRST_PAUSE, worth < min_worth
        if self.is_trying:
            self.num_paused, self.max_tokens = LATER_PAUSE, 1

    def record(
        self, num_drafted: int, num_accepted: int, num_tokens: int, longest: int, min_worth: float
    ) -> None:
        """Record a draft's outcome. Mutates: self"""
        if self.is_trying:
            self.worth = min_worth if num_accepted else 0.0
            self.is_trying = False
        else:
            self.worth = _renewed(self.worth, num_drafted, num_accepted, 1 / 4)
            if num_accepted >= min_worth:
                self.num_paused = FIRST_PAUSE
        if self.worth >= min_worth:
            self.max_tokens = min(longest, 1 + round(2 * self.worth))
        else:
            self._pause(num_tokens)

    def _pause(self, num_tokens: int) -> None:
        """Pause drafting for a while, then try a single token. Mutates: self"""
        self.paused_until = num_tokens + self.num_paused
        self.num_paused = min(2 * self.num_paused, LONGEST_PAUSE)
        self.max_tokens, self.is_trying = 1, True


def _renewed(worth: float, num_drafted: int, num_accepted: int, share: float) -> float:
    """Return the moving average with one more draft. A fully accepted draft (often the last of a
    request) never lowers it, since a longer one might have brought more."""
    found = worth + (num_accepted - worth) * share
    return max(worth, found) if num_accepted == num_drafted else found


class _Sort:
    """The average worth of drafts, for greedy or for all other requests. If drafts do not pay,
    `next_step` is the first step for the next trial: 4 steps after a failed trial, doubled each
    time up to 256; immediately while drafts pay. A successful trial only lets its own request draft
    more."""

    __slots__ = ("_between", "_num_drafts", "next_step", "worth")

    def __init__(self, worth: float) -> None:
        self.worth = worth
        self._num_drafts = 0
        self._between, self.next_step = FIRST_PAUSE, 0

    def tries_now(self, num_steps: int) -> bool:
        """Return whether a trial may start; if so, block others for a while. Mutates: self"""
        if num_steps < self.next_step:
            return False
        self.next_step = num_steps + self._between
        return True

    def note_trial(self, num_steps: int, num_accepted: int) -> None:
        """Record how a trial ended. Mutates: self"""
        if not num_accepted:
            self._between = min(2 * self._between, LONGEST_BETWEEN)
        self.next_step = num_steps + self._between

    def note_draft(
        self, num_steps: int, num_drafted: int, num_accepted: int, min_worth: float
    ) -> None:
        """Record the outcome of a longer draft; `min_worth` is its price. Mutates: self"""
        share = max(NEWEST_SHARE, FIRST_SHARE / (1 + self._num_drafts / 4))
        self._num_drafts += 1
        self.worth = _renewed(self.worth, num_drafted, num_accepted, share)
        if self.worth >= min_worth:
            self._between, self.next_step = FIRST_PAUSE, num_steps


class Drafting(EnginePart):
    """The drafter of one engine and its worth to each running request. `drafter` None: it runs on
    the worker. `is_steady`: drafting depends on the request alone and not on step times, because
    the sampled tokens depend on it (drafts that are sampled)."""

    def __init__(
        self,
        spec: DraftSpec,
        drafter: Drafter | None,
        model: ModelSpec,
        counter: StepCounter,
        *,
        is_steady: bool = False,
    ) -> None:
        self._max_tokens = spec.max_tokens
        self._pause_above = spec.pause_above_requests
        self._max_model_tokens = spec.max_model_tokens
        self._vocab_size = model.vocab_size
        self._counter = counter
        self._lengths: dict[str, _AdaptiveDraftLength] = {}
        self._drafter = drafter
        self._price = DraftPrice()
        self._is_steady = is_steady
        self._sorts = {is_greedy: _Sort(float(spec.max_tokens)) for is_greedy in (True, False)}
        self._num_steps = 0
        self._num_idle = 0
        self._has_made = False
        self._rests_until = 0

    def begin(self, active: ActiveRequest, num_unfinished: int) -> None:
        """Request drafts after a new request's first token. Mutates: num_wanted_drafts"""
        self._rests_until = 0
        request = active.request
        if self._drafter is not None:
            self._expect(request)
            return
        length = self._begun(request, num_unfinished)
        self._lengths[request.request_id] = length
        if not self._is_crowded(num_unfinished) and self._may_ask(request, length):
            request.num_wanted_drafts = length.max_tokens

    def _expect(self, request: RequestState) -> None:
        """Pass the client's guess of the answer on to the drafter. Mutates: the drafter"""
        assert self._drafter is not None
        prediction, request_id = request.sampling.prediction, request.request_id
        if not prediction or "predictions" not in self._drafter.capabilities:
            return
        try:
            self._drafter.expect(request_id, request.num_prompt_tokens, prediction)
        except Exception:
            named = {"request_id": request_id}
            logger.exception("the drafter takes no prediction for %s", request_id, extra=named)

    def _begun(self, request: RequestState, num_unfinished: int) -> _AdaptiveDraftLength:
        """Return the initial draft length of a new request. Mutates: self"""
        if self._drafter is not None:
            return _AdaptiveDraftLength(self._max_tokens)
        min_worth, worth = self._least_worth(num_unfinished), self._sort_of(request).worth
        return _PricedDraftLength(self._max_tokens, worth, min_worth)

    def _sort_of(self, request: RequestState) -> _Sort:
        return self._sorts[request.sampling.temperature == 0.0]

    def _may_ask(self, request: RequestState, length: _AdaptiveDraftLength) -> bool:
        """Return whether drafts may be requested; if they are a trial, start it. Mutates: self"""
        if length.max_tokens <= 0 or request.num_tokens < length.paused_until:
            return False
        if self._is_steady or not length.is_trying or request.draft_ids:
            return True
        return self._sort_of(request).tries_now(self._num_steps)

    def _least_worth(self, num_rows: int) -> float:
        return LEAST_WORTH if self._is_steady else self._price.least_worth(num_rows)

    def note(self, step: StepRecord) -> None:
        """Learn from a step, and draft for its requests. Mutates: as `update`"""
        self._note_time(step.plan, step.result, step.took_s)
        self.update(step.changed, step.num_unfinished)

    def _note_time(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        """Record the duration of a step if every row decoded. Mutates: self"""
        stands_for = PLAIN_EVERY if self._num_idle else 1
        if self._is_steady or self._num_steps % stands_for:
            return
        drafted = verified = accepted = 0
        for row, found in zip(plan.rows, result.rows, strict=True):
            if row.num_tokens != 1 + len(row.drafts) or not row.samples:
                return
            drafted, verified = drafted + row.num_drafts, verified + len(row.drafts)
            accepted += max(0, len(found.token_ids) - 1) if row.drafts else 0
        had_made, self._has_made = self._has_made, drafted > 0
        if self._drafter is None and (not had_made if drafted else verified):
            return  # first or last step of a worker's drafts: includes only half of their cost
        self._price.note(len(plan.rows), drafted + verified, accepted, step_s, stands_for)

    def update(self, requests: Sequence[RequestState], num_unfinished: int) -> None:
        """Learn from the drafts just verified and draft again. `requests` are the changed ones.

        Mutates: self; draft_ids, num_wanted_drafts and has_unlikely_drafts of the requests
        """
        self._num_steps += 1
        if self._num_steps < self._rests_until and not any(one.draft_ids for one in requests):
            return
        is_crowded = self._is_crowded(num_unfinished)
        if not self._is_steady:
            is_crowded |= not self._price.pays(len(requests))
        is_idle = True
        for request in requests:
            length = self._lengths.get(request.request_id)
            if length is None:
                length = self._begun(request, num_unfinished)
                self._lengths[request.request_id] = length
            elif request.num_draft_tokens > length.num_drafted:
                self._record(request, length, len(requests))
            elif request.has_unlikely_drafts:
                self._learn(request, length, len(requests), 1, 0)
                request.has_unlikely_drafts = False
            is_asked = not is_crowded and self._may_ask(request, length)
            limit = max(0, min(length.max_tokens if is_asked else 0, self._room(request)))
            if self._drafter is None:
                request.draft_ids = self._brought(request, length, limit)
                is_tried = length.is_trying and bool(request.draft_ids)
                request.num_wanted_drafts = limit if length.max_tokens and not is_tried else 0
            else:
                is_asked = limit > 0 and request.status == RUNNING
                request.draft_ids = self._guess(request, length, limit) if is_asked else ()
            is_idle &= not (request.draft_ids or request.num_wanted_drafts)
        self._num_idle = self._num_idle + 1 if is_idle else 0
        if self._num_idle > STEPS_UNDER_WAY:
            self._rests_until = self._next_chance(requests, is_crowded)

    def _next_chance(self, requests: Sequence[RequestState], is_crowded: bool) -> int:
        """Return the first step with new drafts, unless a request starts or ends before."""
        if is_crowded:
            return self._num_steps + PLAIN_EVERY
        if self._is_steady or not all(self._lengths[one.request_id].is_trying for one in requests):
            return 0
        return min((self._sort_of(one).next_step for one in requests), default=0)

    def _is_crowded(self, num_unfinished: int) -> bool:
        return self._pause_above is not None and num_unfinished > self._pause_above

    def end(self, active: ActiveRequest) -> None:
        """Drop the state of a request. Mutates: self"""
        self._rests_until = 0
        request_id = active.request_id
        if self._lengths.pop(request_id, None) is None or self._drafter is None:
            return
        try:
            self._drafter.forget(request_id)
        except Exception:
            named = {"request_id": request_id}
            logger.exception("the drafter failed to forget request %s", request_id, extra=named)

    def _record(self, request: RequestState, length: _AdaptiveDraftLength, num_rows: int) -> None:
        """Record how many of a request's drafts were accepted. Mutates: self, length"""
        num_drafted = request.num_draft_tokens - length.num_drafted
        num_accepted = request.num_accepted_tokens - length.num_accepted
        length.num_drafted, length.num_accepted = (
            request.num_draft_tokens,
            request.num_accepted_tokens,
        )
        self._counter.count_draft(num_drafted, num_accepted)
        self._learn(request, length, num_rows, num_drafted, num_accepted)

    def _learn(
        self,
        request: RequestState,
        length: _AdaptiveDraftLength,
        num_rows: int,
        num_drafted: int,
        num_accepted: int,
    ) -> None:
        """Update the averages with the outcome of a request's draft. Mutates: self, length"""
        min_worth = self._least_worth(num_rows)
        if not self._is_steady:
            sort = self._sort_of(request)
            if length.is_trying:
                sort.note_trial(self._num_steps, num_accepted)
            elif length.max_tokens > 1:
                sort.note_draft(self._num_steps, num_drafted, num_accepted, min_worth)
        if length.max_tokens:
            length.record(
                num_drafted, num_accepted, request.num_tokens, self._max_tokens, min_worth
            )

    def _brought(
        self, request: RequestState, length: _AdaptiveDraftLength, limit: int
    ) -> tuple[int, ...]:
        """Return the worker's drafts, up to the number that is still wanted. Mutates: length"""
        drafts = request.draft_ids[:limit] if request.status == RUNNING else ()
        return drafts if self._are_known(drafts) else self._given_up(request, length, FOREIGN)

    def _room(self, request: RequestState) -> int:
        """Return how many drafts of the request fit into the drafter's context."""
        max_tokens = self._max_model_tokens
        return self._max_tokens if max_tokens is None else max_tokens - request.num_tokens

    def _guess(
        self, request: RequestState, length: _AdaptiveDraftLength, limit: int
    ) -> tuple[int, ...]:
        """Return the drafter's draft; none, now and later, if it fails. Mutates: length"""
        assert self._drafter is not None, "the worker guesses"
        try:
            drafts = tuple(
                self._drafter.propose(request.request_id, request.token_ids, limit)[:limit]
            )
            fault = "" if self._are_known(drafts) else FOREIGN
        except Exception as error:
            drafts, fault = (), described(error)
        return self._given_up(request, length, fault) if fault else drafts

    def _are_known(self, drafts: tuple[int, ...]) -> bool:
        return not drafts or (min(drafts) >= 0 and max(drafts) < self._vocab_size)

    def _given_up(
        self, request: RequestState, length: _AdaptiveDraftLength, fault: str
    ) -> tuple[int, ...]:
        """Return no drafts and disable drafting for the request. Mutates: length"""
        length.max_tokens = 0
        logger.error("the drafter is not used again for %s: %s", request.request_id, fault)
        return ()
