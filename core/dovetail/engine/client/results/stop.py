"""StopMatcher: finds stop strings in text that arrives in pieces, and holds back partial matches.

The result does not depend on how the text was split: the stop string that is complete first wins,
and of several that end together the longest. It uses one Knuth-Morris-Pratt automaton per stop
string, so the cost per character does not depend on their lengths. Source: Knuth, Morris, Pratt,
"Fast pattern matching in strings" (1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextWatch(Protocol):
    """Reads one completion's text and finds its end, for callers that do not emit all text."""

    @property
    def matched(self) -> str | None:
        """Return the stop string that was found, or None."""

    def feed(self, text: str, token_ids: Sequence[int], num_chars: Sequence[int]) -> object:
        """Take the text of new tokens, with each one's number of characters. Mutates: self"""

    def finish(self, *, is_cut: bool) -> object:
        """Take the end of the text; held-back text may still be a stop string. Mutates: self

        `is_cut`: the answer was cut off by a limit.
        """


class StopMatcher:
    """The search in one completion. `matched` is the stop string found, or None."""

    __slots__ = ("_failures", "_held", "_includes_stop", "_states", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""
        self._includes_stop = includes_stop
        self.matched: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Return the text that is safe to emit now; nothing after a match.

        A stop string that is completed while `may_stop` is false is ordinary text.
        """
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        for position, char in enumerate(text):
            length = self._advance(char)
            if length and may_stop:
                return self._cut(text[: position + 1], length)
        pending = self._held + text
        num_safe = len(pending) - max(self._states)
        self._held = pending[num_safe:]
        return pending[:num_safe]

    def flush(self) -> str:
        """Return the held-back text, at the end or before something other than text.

        Mutates: self
        """
        pending, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return pending

    def _cut(self, text: str, length: int) -> str:
        """Return the text up to the match of `length` at the end of `text`, or including it."""
        whole = self._held + text
        self.matched = whole[len(whole) - length :]
        self._held = ""
        return whole if self._includes_stop else whole[: len(whole) - length]

    def _advance(self, char: str) -> int:
        """Advance every automaton by one character; return the longest complete match, or 0."""
        longest = 0
        states = self._states
        for i, stop in enumerate(self._stops):
            failure = self._failures[i]
            state = states[i]
            while state and stop[state] != char:
                state = failure[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                longest = max(longest, state)
                state = failure[state - 1]
            states[i] = state
        return longest


def _failure_table(pattern: str) -> list[int]:
    """Return the length of the longest proper border of each prefix."""
    table = [0] * len(pattern)
    state = 0
    for i in range(1, len(pattern)):
        while state and pattern[state] != pattern[i]:
            state = table[state - 1]
        if pattern[state] == pattern[i]:
            state += 1
        table[i] = state
    return table
