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
    """A prompt of an ended request, which was computed at `computed_s`."""

    data: bytes
    key: tuple[str, str]
    computed_s: float

    @property
    def end(self) -> bytes:
        """Return the tokens by which its conversation is recognised."""
        return self.data[-(END_TOKENS + OPENING_TOKENS) * SIZE : -OPENING_TOKENS * SIZE]


class PrefixBreaks:
    """The latest prompts of one process. Used by one thread."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self._num_bytes = 0
        self._has_hit = False

    def note(self, stats: RequestStats) -> PrefixBreak | None:
        """Return how the prompt of an ended request broke with its conversation, if it did.
        Mutates: self"""
        if stats.cache_key is None or stats.prompt_tokens < MIN_LOST_TOKENS:
            return None
        data = array("I", stats.prompt_ids).tobytes()
        self._has_hit |= stats.cached_tokens > 0
        found = self._break_of(data, stats) if stats.times.first_token_s else None
        if stats.times.first_token_s:
            prompt = _Prompt(data=data, key=stats.cache_key, computed_s=stats.times.first_token_s)
            self._keep(stats.request_id, prompt)
        return found

    def _break_of(self, data: bytes, stats: RequestStats) -> PrefixBreak | None:
        earlier = [
            prompt
            for prompt in self._prompts.values()
            if prompt.key == stats.cache_key and prompt.computed_s < stats.times.scheduled_s
        ]
        if not earlier:
            return None
        lengths = [common_bytes(prompt.data, data) // SIZE for prompt in earlier]
        at, best = max(zip(lengths, range(len(earlier)), strict=True))
        cached = stats.cached_tokens
        if self._has_hit and at - cached >= MIN_LOST_TOKENS:
            now = stats.prompt_ids[cached]
            return PrefixBreak(at=cached, num_lost=at - cached, why=GONE, was=now, now=now)
        is_continued = at * SIZE >= len(earlier[best].data) - len(earlier[best].end)
        lost = 0 if is_continued else _end_of_repeated(earlier, data) - at
        if lost < MIN_LOST_TOKENS:
            return None
        (was,) = array("I", earlier[best].data[at * SIZE : (at + 1) * SIZE])
        now = stats.prompt_ids[at]
        return PrefixBreak(at=at, num_lost=lost, why=CHANGED, was=was, now=now)

    def _keep(self, request_id: str, prompt: _Prompt) -> None:
        """Keep a prompt in place of those of which it is the continuation. Mutates: self"""
        for old_id, old in list(self._prompts.items()):
            if old.key == prompt.key and prompt.data.startswith(old.data):
                self._drop(old_id)
        self._prompts[request_id] = prompt
        self._num_bytes += len(prompt.data)
        while len(self._prompts) > MAX_PROMPTS or self._num_bytes > MAX_TOKENS * SIZE:
            self._drop(next(iter(self._prompts)))

    def _drop(self, request_id: str) -> None:
        self._num_bytes -= len(self._prompts.pop(request_id).data)


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
