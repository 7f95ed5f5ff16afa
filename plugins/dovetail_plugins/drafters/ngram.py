"""NgramDrafter: drafts what followed the last few tokens where they occurred before.

Searches prompt and answer; pays off if answers repeat their prompt or themselves (summaries, code
edits, extraction). It runs no model. Knows only token ids. Source: Saxena, "Prompt lookup
decoding", 2023; the index is the hash chain of Deutsch, DEFLATE (RFC 1951), section 4.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters._predicted import PredictingDrafter

MAX_CANDIDATES = 32
"""Earlier places looked at per call, so that a common n-gram cannot make a step slow."""
DEFAULT_MIN, DEFAULT_MAX = 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramOptions:
    """Options of the ngram drafter. If only one is given, the other one adapts to it."""

    prompt_lookup_max: int | None = field(
        default=None,
        metadata={
            "help": f"most last tokens that are compared, {DEFAULT_MAX} if not given; "
            "the place where most of them agree wins",
            "unit": "tokens",
            "ge": 1,
        },
    )
    prompt_lookup_min: int | None = field(
        default=None,
        metadata={
            "help": f"fewest last tokens that must stand earlier, {DEFAULT_MIN} if not given",
            "unit": "tokens",
            "ge": 1,
        },
    )

    def __post_init__(self) -> None:
        low, high = self.lengths
        if low > high:
            raise ValueError(f"prompt_lookup_min {low} is above prompt_lookup_max {high}")

    @property
    def lengths(self) -> tuple[int, int]:
        """Return the fewest and the most tokens compared."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None:
            low = min(DEFAULT_MIN, high or DEFAULT_MIN)
        return low, max(DEFAULT_MAX, low) if high is None else high


class TokenIndex:
    """Earlier positions of each n-gram of `low` tokens in one growing sequence, latest first.

    Places are the positions just after an n-gram; `_before[place]` is the place of the same n-gram
    before it, 0 for none.
    """

    __slots__ = ("_before", "_high", "_last", "_low")

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high
        self._last: dict[tuple[int, ...], int] = {}
        self._before = array("I", bytes(4 * low))

    def find(self, token_ids: Sequence[int]) -> int:
        """Return where the longest match of the last tokens occurred before, 0 for none.

        Among equals the latest one. Mutates: self, which takes in new tokens
        """
        end = len(token_ids)
        self._extend(token_ids, end)
        place = self._last.get(tuple(token_ids[end - self._low : end]), 0) if end else 0
        best, best_length = 0, 0
        for _ in range(MAX_CANDIDATES):
            if place == 0:
                break
            length = self._agreement(token_ids, place, end)
            if length > best_length:
                best, best_length = place, length
                if length == self._high:
                    break
            place = self._before[place]
        return best

    def _extend(self, token_ids: Sequence[int], end: int) -> None:
        """Take in every place before `end`: the last n-gram itself is not an earlier one."""
        first = len(self._before)
        if end <= first:
            return
        low, last, before = self._low, self._last, self._before
        fresh = token_ids[first - low : end - 1]
        for place, ngram in enumerate(zip(*(fresh[i:] for i in range(low)), strict=False), first):
            before.append(last.get(ngram, 0))
            last[ngram] = place

    def _agreement(self, token_ids: Sequence[int], place: int, end: int) -> int:
        """Return how many tokens before `place` equal those before `end`, `low` to `high`."""
        length = self._low
        limit = min(self._high, place)
        while length < limit and token_ids[place - length - 1] == token_ids[end - length - 1]:
            length += 1
        return length


class NgramDrafter(PredictingDrafter):
    """One index per request, about 120 bytes a token; a call takes a few microseconds."""

    info = Info(
        summary="drafts what followed an earlier occurrence of the last tokens (prompt lookup)",
        source="https://github.com/apoorvumang/prompt-lookup-decoding",
    )
    Options = NgramOptions

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        super().__init__()
        self._lengths: tuple[int, int] = options.lengths
        self._indexes: dict[str, TokenIndex] = {}

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return what a prediction says, or the tokens after the best earlier place; a short loop
        is gone round again."""
        predicted = self.predicted(request_id, token_ids, max_tokens)
        if predicted:
            return predicted
        index = self._indexes.get(request_id)
        if index is None:
            index = self._indexes[request_id] = TokenIndex(*self._lengths)
        place = index.find(token_ids)
        if place == 0:
            return ()
        guesses = token_ids[place : place + max_tokens]
        # The text repeats itself with this period, so it is its own continuation.
        period = len(token_ids) - place
        if period < max_tokens:
            return [guesses[i % period] for i in range(max_tokens)]
        return guesses

    def forget(self, request_id: str) -> None:
        """Drop the request's index and prediction."""
        super().forget(request_id)
        self._indexes.pop(request_id, None)
