"""Markers, tools and calls: types shared by tool and reasoning parsers and the server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

MAX_TAG_CHARS = 64
"""The maximum number of characters between the start and the end of a `Tag`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """The text that opens and closes a region. `end` empty: the region ends with the text.

    `opens_answer`: it counts only at the beginning of an answer, for syntaxes without a tag.
    `is_body`: the opening text is part of the region's body (the "[" of a list, for example).
    `may_reopen`: thinking may also open after content, because its opening text is never content.
    `stays`: the opening text of a region is content as well (the end of thinking, for example).
    `ends_with_call`: thinking that is never closed ends at the opening of a call.
    """

    start: str
    end: str = ""
    opens_answer: bool = False
    is_body: bool = False
    may_reopen: bool = False
    stays: bool = False
    ends_with_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A tag of known shape only: `start`, some of the characters `inside`, and ">"."""

    start: str
    inside: str

    @property
    def pattern(self) -> str:
        """Return the regular expression of the whole tag."""
        return f"{self.begun}>"

    @property
    def begun(self) -> str:
        """Return the regular expression of the tag without its end."""
        return f"{re.escape(self.start)}[{re.escape(self.inside)}]{{0,{MAX_TAG_CHARS}}}"


Layout = tuple[str | Tag, ...]
"""Texts and tags that are never content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the client offers. `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the model made. `arguments` is JSON text, the model's own if it wrote JSON.

    `id` is the call's id from the model, if its syntax has one; empty: core makes one.
    `may_be_named`: an id may still follow, so a short call waits. `text` is what the model wrote
    for an invalid call among valid ones: core passes it on as content instead of the call. None of
    these counts for the equality of calls.
    """

    name: str
    arguments: str
    id: str = field(default="", compare=False)
    text: str = field(default="", compare=False)
    may_be_named: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A transcript for the conformance kit: raw text and what it must parse to."""

    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    tools: tuple[Tool, ...] = ()
