"""SessionPlan: how the answers to one request are parsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dovetail.interfaces.answer_reader import ReadingPlan
from dovetail.interfaces.data.text import Layout, Markers, Tool
from dovetail.interfaces.tool_parser import ToolParser


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """How the text of a request's answers is parsed.

    `special_starts` are the call markers that begin with a special token. `starts_inside`: the
    rendered prompt ends inside a reasoning region. `layout` has texts and tags of the chat format
    that are not content but may occur in a call's strings. `max_calls` None: no limit.
    `is_forced_call`: the request named the tool to call. `stops` are the stop strings, active from
    token `min_tokens` on. `reads_bare`: an answer that consists only of calls without markers is
    parsed as calls, if the parser supports it. `reasoning_reading` and `tool_reading` say how
    parsers read their part of the answer themselves (see `stages`). `custom` are the names of tools
    that take text. `note_calls` takes the arguments of an answer's calls by their ids.
    """

    reasoning: Markers | None = None
    tool_parser: ToolParser | None = None
    tools: tuple[Tool, ...] = ()
    special_starts: frozenset[str] = frozenset()
    starts_inside: bool = False
    layout: Layout = ()
    max_calls: int | None = None
    is_forced_call: bool = False
    stops: tuple[str, ...] = ()
    includes_stop: bool = False
    min_tokens: int = 0
    reads_bare: bool = False
    reasoning_reading: ReadingPlan | None = None
    tool_reading: ReadingPlan | None = None
    custom: frozenset[str] = frozenset()
    note_calls: Callable[[Mapping[str, str]], None] | None = None

    @property
    def can_reason(self) -> bool:
        """Return whether part of the answer may be reasoning."""
        return self.reasoning is not None or self.reasoning_reading is not None

    @property
    def is_staged(self) -> bool:
        """Return whether a parser reads its part of the answer itself."""
        return self.reasoning_reading is not None or self.tool_reading is not None

    @property
    def is_plain(self) -> bool:
        """Return whether text passes through unchanged, except for stop strings."""
        return not (self.reasoning or self.tool_parser or self.layout or self.is_staged)

    def with_stops(
        self, stops: tuple[str, ...], *, includes_stop: bool, min_tokens: int
    ) -> SessionPlan:
        """Return the plan with stop strings. If all text is content, the engine looks for them
        instead."""
        if self.is_plain or not stops:
            return self
        return replace(self, stops=stops, includes_stop=includes_stop, min_tokens=min_tokens)
