"""Drafting: asks the drafter what requests may say next, as often as its guesses come true.

Sets `draft_ids` of requests between two steps; the scheduler plans them and the runner verifies
them. A drafter on the worker is asked by the plan of the step before: `num_wanted_drafts` says for
how many. What a drafter does wrong costs a request its drafts and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dovetail.engine.draft_price import DraftPrice
from dovetail.engine.request import RUNNING
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.spec import DraftSpec, ModelSpec
from dovetail.interfaces.step import StepPlan, StepResult

logger = logging.getLogger(__name__)

FREE_MISSES = 3
MAX_PAUSE_TOKENS = 16
LEAST_WORTH, FIRST_PAUSE, LONGEST_PAUSE = 0.6, 4, 64
"""Of a drafter on the worker: how many tokens a draft must bring, and how long it pauses else."""
FOREIGN = "an id outside the vocabulary"


class _AdaptiveDraftLength:
    """How long a request's drafts may be, by how many of their tokens came true so far.

    Starts at the longest draft. A draft of which nothing came true is a miss and halves the length
    (at least 1); after the fourth miss in a row nothing is drafted for one token, after the fifth
    for two, and so on up to 16. A draft of which something came true doubles the length and clears
    the misses. `max_tokens` 0: the drafter failed for this request, it is not asked again.
    """

    __slots__ = ("max_tokens", "num_accepted", "num_drafted", "num_misses", "paused_until")

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_misses = 0
        self.paused_until = 0

    def record(self, num_accepted: int, num_tokens: int, longest: int) -> None:
        """Take in a draft's outcome. Mutates: self"""
        if num_accepted:
            self.num_misses = 0
            self.max_tokens = min(longest, 2 * self.max_tokens)
            return
        self.num_misses += 1
        self.max_tokens = max(1, self.max_tokens // 2)
        num_paused = min(self.num_misses - FREE_MISSES, MAX_PAUSE_TOKENS)
        self.paused_until = num_tokens + max(0, num_paused)


class _PricedDraftLength(_AdaptiveDraftLength):
    """The same for a drafter that computes: a draft is paid for, so it must bring something.

    `worth` is how many tokens a draft brought lately, 1 at first; a quarter of it is renewed by
    every draft. Below `LEAST_WORTH` the request pauses, for 4 tokens, and between pauses drafts one
    token: if that fails, the next pause is twice as long, up to 64, else half as long. When a draft
    is worth enough again, pauses begin anew at 4.
    """

    __slots__ = ("num_paused", "worth")

    def __init__(self, max_tokens: int) -> None:
        super().__init__(max_tokens)
        self.worth = 1.0
        self.num_paused = FIRST_PAUSE

    def record(self, num_accepted: int, num_tokens: int, longest: int) -> None:
        """Take in a draft's outcome. Mutates: self"""
        self.worth += (num_accepted - self.worth) / 4
        if num_accepted:
            self.max_tokens = min(longest, 2 * self.max_tokens)
        else:
            self.max_tokens = max(1, self.max_tokens // 2)
        if self.worth >= LEAST_WORTH:
            self.num_paused = FIRST_PAUSE
            return
        self.max_tokens = 1
        self.paused_until = num_tokens + self.num_paused
        longer = self.num_paused // 2 if num_accepted else self.num_paused * 2
        self.num_paused = max(FIRST_PAUSE, min(longer, LONGEST_PAUSE))


class Drafting:
    """The drafter of one engine and what it is worth to each live request. `drafter` None: it is on
    the worker."""

    def __init__(
        self, spec: DraftSpec, drafter: Drafter | None, model: ModelSpec, counter: StepCounter
    ) -> None:
        self._max_tokens = spec.max_tokens
        self._pause_above = spec.pause_above_requests
        self._max_model_tokens = spec.max_model_tokens
        self._vocab_size = model.vocab_size
        self._counter = counter
        self._lengths: dict[str, _AdaptiveDraftLength] = {}
        self._drafter = drafter
        self._price = DraftPrice()
        self._length = _PricedDraftLength if drafter is None else _AdaptiveDraftLength

    def begin(self, request: RequestState, num_unfinished: int) -> None:
        """Want drafts behind a new request's first token. Mutates: num_wanted_drafts"""
        if self._drafter is None and not self._is_crowded(num_unfinished):
            request.num_wanted_drafts = self._max_tokens

    def note_time(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        """Take in how long a step took in which every row decoded. Mutates: self"""
        made = verified = accepted = 0
        for row, found in zip(plan.rows, result.rows, strict=True):
            if row.num_tokens != 1 + len(row.drafts) or not row.samples:
                return
            made, verified = made + row.num_drafts, verified + len(row.drafts)
            accepted += max(0, len(found.token_ids) - 1) if row.drafts else 0
        if self._drafter is None and (made > 0) != (verified > 0):
            return  # the first step of a worker's drafts, or the last: half of their cost
        self._price.note(len(plan.rows), verified, accepted, step_s)

    def update(self, requests: Sequence[RequestState], num_unfinished: int) -> None:
        """Learn from the drafts just verified and guess anew. `requests` are those that changed.

        Mutates: self; draft_ids and num_wanted_drafts of the requests
        """
        is_crowded = self._is_crowded(num_unfinished) or not self._price.pays(len(requests))
        for request in requests:
            length = self._lengths.get(request.request_id)
            if length is None:
                length = self._lengths[request.request_id] = self._length(self._max_tokens)
            elif request.num_draft_tokens > length.num_drafted:
                self._record(request, length)
            is_asked = length.max_tokens > 0 and request.num_tokens >= length.paused_until
            limit = length.max_tokens if is_asked and not is_crowded else 0
            limit = max(0, min(limit, self._room(request)))
            if self._drafter is None:
                request.draft_ids = self._brought(request, length, limit)
                request.num_wanted_drafts = limit if length.max_tokens else 0
            else:
                is_asked = limit > 0 and request.status == RUNNING
                request.draft_ids = self._guess(request, length, limit) if is_asked else ()

    def _is_crowded(self, num_unfinished: int) -> bool:
        return self._pause_above is not None and num_unfinished > self._pause_above

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request. Mutates: self"""
        if self._lengths.pop(request_id, None) is None or self._drafter is None:
            return
        try:
            self._drafter.forget(request_id)
        except Exception:
            logger.exception("the drafter failed to forget request %s", request_id)

    def _record(self, request: RequestState, length: _AdaptiveDraftLength) -> None:
        num_drafted = request.num_draft_tokens - length.num_drafted
        num_accepted = request.num_accepted_tokens - length.num_accepted
        length.num_drafted, length.num_accepted = (
            request.num_draft_tokens,
            request.num_accepted_tokens,
        )
        self._counter.count_draft(num_drafted, num_accepted)
        if length.max_tokens:
            length.record(num_accepted, request.num_tokens, self._max_tokens)

    def _brought(
        self, request: RequestState, length: _AdaptiveDraftLength, limit: int
    ) -> tuple[int, ...]:
        """Return the worker's drafts, as far as they are wanted still. Mutates: length"""
        drafts = request.draft_ids[:limit] if request.status == RUNNING else ()
        return drafts if self._are_known(drafts) else self._given_up(request, length, FOREIGN)

    def _room(self, request: RequestState) -> int:
        """Return how many drafts of the request stay within the drafter's context."""
        most = self._max_model_tokens
        return self._max_tokens if most is None else most - request.num_tokens

    def _guess(
        self, request: RequestState, length: _AdaptiveDraftLength, limit: int
    ) -> tuple[int, ...]:
        """Return the drafter's guesses; none, now and later, when it fails. Mutates: length"""
        assert self._drafter is not None, "the worker guesses"
        try:
            drafts = tuple(
                self._drafter.propose(request.request_id, request.token_ids, limit)[:limit]
            )
            fault = "" if self._are_known(drafts) else FOREIGN
        except Exception as error:
            drafts, fault = (), f"{type(error).__name__}: {error}"
        return self._given_up(request, length, fault) if fault else drafts

    def _are_known(self, drafts: tuple[int, ...]) -> bool:
        return not drafts or (min(drafts) >= 0 and max(drafts) < self._vocab_size)

    def _given_up(
        self, request: RequestState, length: _AdaptiveDraftLength, fault: str
    ) -> tuple[int, ...]:
        """Return no drafts, and want none any more. Mutates: length"""
        length.max_tokens = 0
        logger.error("the drafter is not used again for %s: %s", request.request_id, fault)
        return ()
