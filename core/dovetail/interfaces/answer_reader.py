"""AnswerReader: what reads one answer, where its parser does so itself.

Most parsers say their markers, and core finds the regions. A parser whose syntax is recognized by
token ids, or that was written for another engine, reads every token instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.interfaces.text import Tool, ToolCall

HELD_ARGUMENTS_CHARS = 256
"""Arguments shorter than this are passed on when they are whole: what breaks off before is no call
yet, and can still be content. Longer ones are passed on while they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerQuery:
    """The facts of an answer before its first token. `request()` is the client's request as JSON
    values, `tail` the end of the rendered prompt, behind the last turn of another role."""

    tools: Sequence[Tool]
    tail: str
    request: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The news of an answer: `reasoning`, then `content`, then `calls`.

    `calls` are all calls so far, or none if none is new: names never change, arguments only grow;
    but those that are not a JSON object yet and shorter than HELD_ARGUMENTS_CHARS may change, since
    they were not passed on yet.
    """

    reasoning: str = ""
    content: str = ""
    calls: Sequence[ToolCall] = ()


class AnswerReader(Protocol):
    """Reads one answer. Core passes on what it says as it says it, so what it makes of an answer
    must not depend on how many tokens come at once."""

    def read(self, text: str, token_ids: Sequence[int]) -> Reading:
        """Return the news that these tokens and their text bring. Mutates: self"""

    def finish(self, *, is_cut: bool) -> Reading:
        """Return what was held back. `is_cut`: the answer was cut off by a limit. Mutates: self"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """How a parser reads the answers of one request: `begin` makes the reader of one of them.
    `shows_special_tokens`: it wants to see the text of every special token."""

    begin: Callable[[], AnswerReader]
    shows_special_tokens: bool = False
