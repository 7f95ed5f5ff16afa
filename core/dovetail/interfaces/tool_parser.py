"""ToolParser: the syntax in which a model family writes tool calls.

A parser names its markers and parses one finished region; core finds the regions and handles
streaming, so a parser cannot depend on how the text was split.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from dovetail.interfaces.answer_reader import AnswerQuery, ReadingPlan
from dovetail.interfaces.data.constraint import Constraint, Repeat
from dovetail.interfaces.data.text import Layout, Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.tokenizer import Tokenizer


class MalformedToolCall(ValueError):
    """The region's text is not a call in this syntax; it is passed on as content."""


class UnfinishedToolCall(MalformedToolCall):
    """The text is the beginning of a call: the end marker was part of it (in a string, for
    example), so core reads up to the next end marker before it gives the region up."""


class ToolParser(Plugin):
    """Immutable and shared by all requests.

    `layout` are texts and tags that are never content (a turn's header, for example), `heads` such
    texts at the beginning of regions that turn out to be content. `inner` are texts within regions
    that `parse` needs to see even if they are special tokens. Generated ids of calls are
    `id_prefix` and `id_digits` hexadecimal digits: some templates take only ids of one length. If a
    parser has several names, auto uses `auto_name`, or else the name of its file.
    """

    interface_version: ClassVar[int] = 2
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "parallel_calls": "several calls may follow each other",
        "streams": "arguments are passed on while the model still writes them",
        "constrains_calls": "calls can be constrained to the tools' schemas",
    }
    markers: ClassVar[tuple[Markers, ...]]
    layout: ClassVar[Layout] = ()
    heads: ClassVar[re.Pattern[str] | None] = None
    inner: ClassVar[tuple[str, ...]] = ()
    auto_name: ClassVar[str] = ""
    id_prefix: ClassVar[str] = "call_"
    id_digits: ClassVar[int] = 24
    samples: ClassVar[tuple[Sample, ...]] = ()

    def __init__(self, options: Any) -> None:
        self.options = options

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for text of this tokenizer. The default works for any tokenizer.

        Raises: ConfigError if the tokenizer lacks what the syntax needs.
        """
        return self

    def reads(self, query: AnswerQuery) -> ReadingPlan | None:
        """Return how the parser reads a request's answers itself. The default, None: core reads
        them by the markers. It reads what an answer's reasoning parser returns as content."""
        return None

    def for_forced_calls(self) -> ToolParser:
        """Return the parser for required calls, if these have a separate syntax that the model is
        constrained to. The default: itself."""
        return self

    @abstractmethod
    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in one region, markers excluded. Raises: MalformedToolCall.

        One of several calls whose arguments are not a JSON object is never passed on as a call:
        with `text` it becomes that text. A call without a name is text that opens like a call.
        """

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls certain from the beginning of a region; arguments may be cut off.

        A longer body must give the same calls, names unchanged, arguments only longer, perhaps more
        calls; and so must `parse`, if the whole body is well formed. If it is not, the result of
        this method for the whole body is used. The default waits for the end of the region. Core
        passes on short arguments when they are complete, and long ones as they grow.
        Raises: MalformedToolCall when no text that follows can make it a call.
        """
        return []

    def close(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of a region that ended within a value, because no end marker after its
        first one completed it. The default finds none. Raises: MalformedToolCall"""
        raise MalformedToolCall("the region is not whole")

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of these tools in an answer that has no marker and consists only of
        calls. The default finds none.

        Raises: MalformedToolCall, UnfinishedToolCall when the text is the beginning of such.
        """
        raise MalformedToolCall("there is no call without its marker")

    def region_end(self, body: str) -> int | None:
        """Return the end of a region without an end marker, by its own syntax (a list is closed,
        for example), or None while more may follow. A longer body must give the same place.

        `body` is then cut there, and the text after it is read as content again.
        """
        return None

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the constraint of one call of this tool, without the text around all calls, which
        `calls_constraint` adds.

        None if the syntax cannot be constrained to a schema; then calls cannot be required.
        """
        return None

    def arguments_constraint(self, tool: Tool) -> Constraint | None:
        """Return the constraint of a call's arguments only, without its name and markers, as needed
        by a structural tag. None, the default: the syntax has no such part."""
        return None

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the constraint of one to `most` calls, each a `call`, markers included."""
        return call if most == 1 else Repeat(call, 1, most)
