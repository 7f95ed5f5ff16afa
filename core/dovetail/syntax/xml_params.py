"""Calls written as tags, with a tag for every parameter: whole, half written, and their form.

`XmlCalls` says which tags a family uses. Arguments become JSON by the tool's schema, one parameter
after the other; a string is passed on while it is written. What `so_far` has once said of a
beginning stays true of every longer text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dovetail.interfaces.form import Form, Json, Repeat, optional, sequence
from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.syntax.json_text import loads
from dovetail.syntax.parameters import (
    MAX_OPEN,
    OPEN_NAME,
    Parameter,
    as_json,
    is_open,
    is_text,
    parameters_of,
    quoted,
    schema_of_parameter,
)
from dovetail.syntax.plain_text import text_form

MAX_VALUE_ENDS = 8
"""How many closing tags may stand in the strings of one JSON value."""
NAME = "NAME"
_NAME = re.compile(r"[^\s<>{}\"'=,]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlCalls:
    """The tags of a call: `before` `head` (`key` value `value_end`)* `tail` `after`.

    NAME stands for the function's or parameter's name, a blank for any blanks or none. `before` and
    `after` may be missing. `tail` empty: the region's end is the call's. `is_wrapped`: a line end
    on either side of a value is not the value's. `gap` is written between the tags.
    """

    head: str
    key: str
    value_end: str
    tail: str = ""
    before: str = ""
    after: str = ""
    is_wrapped: bool = False
    gap: str = "\n"

    def parse(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of a whole text.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a value.
        """
        read = _Reading(self, text, tools, is_whole=True)
        read.run()
        if read.is_in_value:
            raise UnfinishedToolCall("a value is not closed")
        if not read.calls or not read.is_closed or text[read.at :].strip():
            raise MalformedToolCall(f"no call at character {read.at + 1}")
        return read.calls

    def so_far(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold."""
        read = _Reading(self, text, tools, is_whole=False)
        read.run()
        return read.calls

    def form(self, tool: Tool, *, start: str = "", end: str = "") -> Form | None:
        """Return the text of one call, or None where its schema does not divide into parameters."""
        parameters = parameters_of(tool)
        if parameters is None or not _NAME.fullmatch(tool.name):
            return None
        parts: list[Form] = []
        for parameter in parameters:
            part = self._part_form(parameter)
            if part is None:
                return None
            parts.append(part if parameter.is_required else optional(part))
        if is_open(tool) and not parts:
            parts.append(Repeat(self._open_part(), 0, MAX_OPEN))
        head = self.before + self.head.replace(NAME, tool.name) + self.gap
        return sequence(start + head, *parts, self.tail + self.after + end)

    def _part_form(self, parameter: Parameter) -> Form | None:
        """Return a parameter with its tags."""
        if not _NAME.fullmatch(parameter.name):
            return None
        line = "\n" if self.is_wrapped else ""
        json_value = Json({**parameter.schema, "title": parameter.name})
        value: Form | None = sequence(json_value, line + self.value_end)
        if is_text(parameter.schema):
            value = text_form(parameter.schema, self.value_end, line=line)
        key = self.key.replace(NAME, parameter.name) + line
        return sequence(key, value, self.gap) if value else None

    def _open_part(self) -> Form:
        """Return a parameter of which nothing is known."""
        before, _, after = self.key.partition(NAME)
        line = "\n" if self.is_wrapped else ""
        value = text_form({}, self.value_end, line=line)
        assert value is not None
        return sequence(before, OPEN_NAME, after + line, value, self.gap)

    def value(self, text: str) -> str:
        """Return a value without the line ends that are not its own."""
        return text.removeprefix("\n").removesuffix("\n") if self.is_wrapped else text

    def held(self, text: str) -> str:
        """Return of a growing value what no closing tag and no line end before one can take."""
        if self.tail and self.tail in text:
            text = text[: text.index(self.tail)]
        last = text.rfind("<")
        if last >= 0 and any(t.startswith(text[last:]) for t in (self.value_end, self.tail)):
            text = text[:last]
        return self.value(text)


@dataclass(slots=True)
class _Reading:
    """Reading one text from the left. `is_closed`: the last call is over. `is_in_value`: the text
    ends in a parameter's value."""

    tags: XmlCalls
    text: str
    tools: Sequence[Tool]
    is_whole: bool
    calls: list[ToolCall] = field(default_factory=list)
    at: int = 0
    is_closed: bool = True
    is_in_value: bool = False
    by_name: Mapping[str, Tool] = field(default_factory=dict)

    def run(self) -> None:
        """Read call after call, as far as they go."""
        self.by_name = {tool.name: tool for tool in self.tools}
        while self.is_closed and self._read_call():
            pass

    def _read_call(self) -> bool:
        """Read one call; return whether there is one."""
        tags = self.tags
        head = _pattern(tags.head, tags.before).match(self.text, self.at)
        if head is None or (not tags.tail and not self._is_sure(head.end())):
            return False
        self.at = head.end()
        self.is_closed = False
        written: dict[str, str] = {}
        key = _pattern(tags.key)
        while (found := key.match(self.text, self.at)) is not None:
            schema = schema_of_parameter(self.by_name, head[NAME], found[NAME])
            if not self._read_value(found, schema, written):
                self._add(head[NAME], written, "" if self.is_in_value else "}")
                return True
        self._read_tail()
        self._add(head[NAME], written, "}" if self.is_closed else "")
        return True

    def _is_sure(self, at: int) -> bool:
        """Return whether a head that no tag closes is one: a parameter follows, or nothing."""
        has_key = _pattern(self.tags.key).match(self.text, at) is not None
        return has_key or (self.is_whole and not self.text[at:].strip())

    def _read_tail(self) -> None:
        tail = _pattern(self.tags.tail, after=self.tags.after) if self.tags.tail else None
        found = tail.match(self.text, self.at) if tail else None
        if found is not None:
            self.at = found.end()
        self.is_closed = found is not None or (self.is_whole and not self.text[self.at :].strip())

    def _add(self, name: str, written: dict[str, str], end: str) -> None:
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in written.items())
        self.calls.append(ToolCall(name=name, arguments="{" + inside + end))

    def _read_value(
        self, key: re.Match[str], schema: Mapping[str, Any], written: dict[str, str]
    ) -> bool:
        """Read a value; return whether the call goes on. Mutates: written, where it is new"""
        start, end = key.end(), self._value_end(key.end(), schema)
        is_new = key[NAME] not in written
        if end is None and self.is_whole:
            end = self._call_end(start)
        if end is None:
            self.is_in_value = True
            if is_new and is_text(schema):
                begun = quoted(self.tags.held(self.text[start:]))
                written[key[NAME]] = begun.removesuffix('"')
            return False
        if is_new:
            written[key[NAME]] = as_json(self.tags.value(self.text[start:end]), schema)
        has_end = self.text.startswith(self.tags.value_end, end)
        self.at = end + len(self.tags.value_end) if has_end else end
        return True

    def _call_end(self, start: int) -> int | None:
        """Return where the call's own end closes a value that its own tag does not, or None."""
        tail = self.tags.tail
        at = self.text.rfind(tail, start) if tail else -1
        rest = self.text[at + len(tail) :].strip()
        return at if at >= 0 and rest in ("", self.tags.after) else None

    def _value_end(self, start: int, schema: Mapping[str, Any]) -> int | None:
        """Return the place of the closing tag: in JSON the first that stands in no string."""
        tag = self.tags.value_end
        first = self.text.find(tag, start)
        opening = self.text[start : start + 64].lstrip()[:1]
        if first < 0 or is_text(schema) or opening not in ("[", "{", '"'):
            return None if first < 0 else first
        end = first
        for _ in range(MAX_VALUE_ENDS):
            if not _ends_in_string(self.text[start:end]):
                return end if end == first or _is_json(self.text[start:end]) else first
            end = self.text.find(tag, end + len(tag))
            if end < 0:
                return first if self.is_whole and self._is_followed(first + len(tag)) else None
        return first

    def _is_followed(self, at: int) -> bool:
        """Return whether what a closing tag is followed by is the call's next tag."""
        tags = (self.tags.tail, self.tags.key)
        return not all(tag and _pattern(tag).match(self.text, at) is None for tag in tags)


def _ends_in_string(text: str) -> bool:
    try:
        loads(text.strip())
    except UnfinishedToolCall:
        return True
    except MalformedToolCall:
        return False
    return False


def _is_json(text: str) -> bool:
    try:
        loads(text.strip())
    except MalformedToolCall:
        return False
    return True


@cache
def _pattern(tag: str, before: str = "", after: str = "") -> re.Pattern[str]:
    """Return what matches a tag: blanks before it, NAME a name, a blank any blanks or none."""
    words = [_worded(word) for word in tag.split()]
    optional_before = rf"(?:{re.escape(before)}\s*)?" if before else ""
    optional_after = rf"(?:\s*{re.escape(after)})?" if after else ""
    return re.compile(r"\s*" + optional_before + r"\s*".join(words) + optional_after)


def _worded(word: str) -> str:
    return re.escape(word).replace(NAME, rf"(?P<{NAME}>{_NAME.pattern})")
