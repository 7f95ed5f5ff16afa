"""PrefixBreaks: finds prompts that repeat a conversation without beginning like it.

A prompt whose beginning changes (a date in the system text, another order of tools) is computed
again from there on. A conversation is recognised by the end of an earlier prompt of it. What two
prompts begin with alike is found by comparing memory, never token by token.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.interfaces.stats import RequestStats

MAX_PROMPTS = 64
MAX_TOKENS = 1 << 20
"""How many prompts, and tokens of prompts, are compared with."""
MIN_LOST_TOKENS = 128
"""Breaks that cost less are not counted."""
END_TOKENS = 32
OPENING_TOKENS = 16
"""A conversation is recognised by END_TOKENS before the opening of the model's turn, which the next
prompt may lack."""
SIZE = array("I").itemsize

CHANGED, GONE = "changed", "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBreak:
    """A prompt that was computed again from token `at` on, although an earlier one had `num_lost`
    of these tokens. `why`: "changed", token `was` is now `now`; "gone": the same tokens were no
    longer in the cache."""

    at: int
    num_lost: int
    why: str
    was: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """A prompt of an ended request, which was computed at `computed_s`. `start` is all of it but
    its end and the opening of the model's turn."""

    data: bytes
    start: bytes
    key: tuple[str, str]
    computed_s: float

    @property
    def end(self) -> bytes:
        """Return the tokens by which its conversation is recognised."""
        return self.data[len(self.start) : -OPENING_TOKENS * SIZE]


class PrefixBreaks:
    """The latest prompts of one process. Used by one thread."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self._num_bytes = 0
        self._has_hit = False

    def note(self, stats: RequestStats) -> PrefixBreak | None:
        """Return how the prompt of an ended request broke with its conversation, if it did.
        Mutates: self"""
        key, computed_s = stats.cache_key, stats.times.first_token_s
        if key is None or not computed_s or stats.prompt_tokens < MIN_LOST_TOKENS:
            return None
        data = array("I", stats.prompt_ids).tobytes()
        self._has_hit |= stats.cached_tokens > 0
        known = [(name, one) for name, one in self._prompts.items() if one.key == key]
        continued = [(name, one) for name, one in known if data.startswith(one.start)]
        earlier = [one for _, one in continued or known if one.computed_s < stats.times.scheduled_s]
        found = None
        if earlier:
            break_of = self._break_of_lost if continued else self._break_of_changed
            found = break_of(earlier, data, stats)
        for name, _ in continued:
            self._drop(name)
        start = data[: -(END_TOKENS + OPENING_TOKENS) * SIZE]
        self._store(
            stats.request_id, _Prompt(data=data, start=start, key=key, computed_s=computed_s)
        )
        return found

    def _break_of_lost(
        self, earlier: Sequence[_Prompt], data: bytes, stats: RequestStats
    ) -> PrefixBreak | None:
        """Return the break of a prompt that continues these, if the cache has lost them."""
        cached = stats.cached_tokens
        lost = max(len(one.start) for one in earlier) // SIZE - cached
        if not self._has_hit or lost < MIN_LOST_TOKENS:
            return None
        now = stats.prompt_ids[cached]
        return PrefixBreak(at=cached, num_lost=lost, why=GONE, was=now, now=now)

    def _break_of_changed(
        self, earlier: Sequence[_Prompt], data: bytes, stats: RequestStats
    ) -> PrefixBreak | None:
        """Return the break of a prompt that continues none of these, if it repeats one's end."""
        lengths = [common_bytes(one.data, data) // SIZE for one in earlier]
        at, best = max(zip(lengths, range(len(earlier)), strict=True))
        lost = _end_of_repeated(earlier, data) - at
        if lost < MIN_LOST_TOKENS:
            return None
        (was,) = array("I", earlier[best].data[at * SIZE : (at + 1) * SIZE])
        return PrefixBreak(at=at, num_lost=lost, why=CHANGED, was=was, now=stats.prompt_ids[at])

    def _store(self, request_id: str, prompt: _Prompt) -> None:
        """Store a prompt, and no more than are compared with. Mutates: self"""
        self._drop(request_id)
        self._prompts[request_id] = prompt
        self._num_bytes += len(prompt.data)
        while len(self._prompts) > MAX_PROMPTS or self._num_bytes > MAX_TOKENS * SIZE:
            self._drop(next(iter(self._prompts)))

    def _drop(self, request_id: str) -> None:
        prompt = self._prompts.pop(request_id, None)
        self._num_bytes -= 0 if prompt is None else len(prompt.data)


def _end_of_repeated(earlier: Sequence[_Prompt], data: bytes) -> int:
    """Return where the last of these prompts' ends is in a prompt, in tokens; 0: nowhere."""
    ends = {prompt.end for prompt in earlier}
    return max((data.rfind(end) + len(end) for end in ends if end in data), default=0) // SIZE


def common_bytes(one: bytes, other: bytes) -> int:
    """Return the length of what two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
