"""Drafting: asks the drafter what requests may say next, as often as its guesses come true.

Sets `draft_ids` of requests between two steps; the scheduler plans them and the runner verifies
them. What a drafter does wrong costs a request its drafts and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dovetail.engine.request import RUNNING
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.spec import DraftSpec, ModelSpec

logger = logging.getLogger(__name__)

FREE_MISSES = 3
MAX_PAUSE_TOKENS = 16


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


class Drafting:
    """The drafter of one engine and what it is worth to each live request."""

    def __init__(
        self, spec: DraftSpec, drafter: Drafter, model: ModelSpec, counter: StepCounter
    ) -> None:
        self._max_tokens = spec.max_tokens
        self._pause_above = spec.pause_above_requests
        self._max_model_tokens = spec.max_model_tokens
        self._vocab_size = model.vocab_size
        self._counter = counter
        self._lengths: dict[str, _AdaptiveDraftLength] = {}
        self._drafter = drafter

    def update(self, requests: Iterable[RequestState], num_unfinished: int) -> None:
        """Learn from the drafts just verified and guess anew. `requests` are those that changed.

        Mutates: self; draft_ids of the requests
        """
        is_paused = self._pause_above is not None and num_unfinished > self._pause_above
        for request in requests:
            length = self._lengths.get(request.request_id)
            if length is None:
                length = self._lengths[request.request_id] = _AdaptiveDraftLength(self._max_tokens)
            elif request.num_draft_tokens > length.num_drafted:
                self._record(request, length)
            request.draft_ids = ()
            is_asked = length.max_tokens > 0 and request.num_tokens >= length.paused_until
            if is_asked and not is_paused and request.status == RUNNING:
                request.draft_ids = self._guess(request, length)

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request. Mutates: self"""
        if self._lengths.pop(request_id, None) is None:
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

    def _room(self, request: RequestState) -> int:
        """Return how many drafts of the request stay within the drafter's context."""
        most = self._max_model_tokens
        return self._max_tokens if most is None else most - request.num_tokens

    def _guess(self, request: RequestState, length: _AdaptiveDraftLength) -> tuple[int, ...]:
        """Return the drafter's guesses; none, now and later, when it fails. Mutates: length"""
        limit = min(length.max_tokens, self._room(request))
        if limit < 1:
            return ()
        try:
            guesses = tuple(
                self._drafter.propose(request.request_id, request.token_ids, limit)[:limit]
            )
            if not guesses or (min(guesses) >= 0 and max(guesses) < self._vocab_size):
                return guesses
            fault = "an id outside the vocabulary"
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        length.max_tokens = 0
        logger.error("the drafter is not used again for %s: %s", request.request_id, fault)
        return ()
