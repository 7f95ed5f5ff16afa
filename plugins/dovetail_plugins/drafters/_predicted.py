"""PredictingDrafter: base of drafters that take the answer which a client predicts.

Prediction follows an answer through that text.

While the answer is as predicted, the rest of the prediction is the draft. After another token the
place is taken to be one further (a word was replaced); if that is wrong as well, the last tokens
of the answer are looked up in the prediction (text was inserted or left out).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from dovetail.interfaces.drafter import Drafter

MAX_PLACES = 16
"""Places looked at per call, so that a common pair of tokens cannot make a step slow."""
MAX_AGREEMENT = 8


class Prediction:
    """One request's prediction. `start` is the first position of the answer."""

    __slots__ = ("_at", "_ids", "_last", "_num_read", "_places", "_start")

    def __init__(self, start: int, token_ids: Sequence[int]) -> None:
        self._ids = tuple(token_ids)
        self._start = self._num_read = start
        self._at: int | None = 0
        self._last = 0
        self._places: dict[tuple[int, int], list[int]] = {}
        for place, pair in enumerate(zip(self._ids, self._ids[1:], strict=False), 2):
            self._places.setdefault(pair, []).append(place)

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return the predicted tokens after prompt and answer; none where the place is unknown.
        Mutates: self, which reads the new tokens"""
        for position in range(self._num_read, len(token_ids)):
            self._read(token_ids[position])
        self._num_read = len(token_ids)
        if self._at is None:
            self._at = self._found(token_ids)
        return () if self._at is None else self._ids[self._at : self._at + max_tokens]

    def _read(self, token_id: int) -> None:
        """Move the place behind one token of the answer. Mutates: self"""
        at = self._at
        if at is None:
            return
        if at < len(self._ids) and self._ids[at] == token_id:
            self._at = self._last = at + 1
        elif at == self._last:
            self._at = at + 1  # perhaps replaced
        else:
            self._at = None

    def _found(self, token_ids: Sequence[int]) -> int | None:
        """Return the place after the answer's last tokens, the first one behind the last known
        place of those that agree longest."""
        end = len(token_ids)
        if end - self._start < 2:
            return None
        places = self._places.get((token_ids[end - 2], token_ids[end - 1]), ())
        first = bisect_left(places, self._last)
        tried = places[first : first + MAX_PLACES] or places[-MAX_PLACES:]
        if not tried:
            return None
        found = max(tried, key=lambda place: self._agreement(token_ids, place))
        self._last = found
        return found

    def _agreement(self, token_ids: Sequence[int], place: int) -> int:
        """Return how many tokens before a place equal the answer's last ones."""
        end = len(token_ids)
        limit = min(MAX_AGREEMENT, place, end - self._start)
        length = 2
        while length < limit and self._ids[place - length - 1] == token_ids[end - length - 1]:
            length += 1
        return length


class PredictingDrafter(Drafter):
    """Keeps the predictions of live requests."""

    capabilities = frozenset({"predictions"})

    def __init__(self) -> None:
        self._predictions: dict[str, Prediction] = {}

    def expect(self, request_id: str, num_prompt_tokens: int, token_ids: Sequence[int]) -> None:
        """Take a request's prediction. Mutates: self"""
        self._predictions[request_id] = Prediction(num_prompt_tokens, token_ids)

    def predicted(
        self, request_id: str, token_ids: Sequence[int], max_tokens: int
    ) -> Sequence[int]:
        """Return what a request's prediction says comes next; empty without one. Mutates: self"""
        found = self._predictions.get(request_id)
        return () if found is None else found.propose(token_ids, max_tokens)

    def forget(self, request_id: str) -> None:
        """Drop a request's prediction. Mutates: self"""
        self._predictions.pop(request_id, None)
