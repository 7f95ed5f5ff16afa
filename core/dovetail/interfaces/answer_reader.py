"""AnswerReader: reads one answer token by token, for parsers that do this themselves.

Most parsers only declare their markers, and core finds the regions. A parser whose syntax is
recognized by token ids, or that was written for another engine, reads every token instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.interfaces.data.text import Tool, ToolCall

HELD_ARGUMENTS_CHARS = 256
"""Shorter arguments are sent only when complete: a call that breaks off before is not a call yet
and can still become content. Longer ones are streamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerQuery:
    """The facts known before an answer's first token. `request()` returns the client's request as
    JSON. `tail` is the end of the rendered prompt, after the last turn of another role."""

    tools: Sequence[Tool]
    tail: str
    request: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """New output of an answer: `reasoning`, then `content`, then `calls`.

    `calls` are all calls so far, or empty if none is new. Names never change and arguments only
    grow. Only arguments that are not a complete JSON object yet and are shorter than
    HELD_ARGUMENTS_CHARS may change, because they were not sent yet.
    """

    reasoning: str = ""
    content: str = ""
    calls: Sequence[ToolCall] = ()


class AnswerReader(Protocol):
    """Reads one answer. Core streams its output immediately, so the result must not depend on how
    many tokens arrive together."""

    def read(self, text: str, token_ids: Sequence[int]) -> Reading:
        """Return the new output for these tokens and their text. Mutates: self"""

    def finish(self, *, is_cut: bool) -> Reading:
        """Return what was held back. `is_cut`: a limit cut the answer off. Mutates: self"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """How a parser reads the answers of one request: `begin` makes the reader for one answer.
    `shows_special_tokens`: the reader needs the text of every special token."""

    begin: Callable[[], AnswerReader]
    shows_special_tokens: bool = False
