"""Reading calls with a tag per parameter from the left, as far as they go.

Knows no family: the tags are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.json_text import loads, quoted
from dovetail_plugins.syntax.parameters import as_json, schema_of_parameter
from dovetail_plugins.syntax.schemas import is_text, kinds, properties_of
from dovetail_plugins.syntax.xml_tags import (
    CALL,
    HEAD,
    LINE,
    NAME,
    TYPE,
    XmlTags,
    closers,
    inner,
    pattern,
)

MAX_VALUE_ENDS = 8
"""How many closing tags the strings of one JSON value may contain."""
MAX_SUSPECTS = 8
"""How many tags in one value are checked as its possible end."""


@dataclass(slots=True)
class _Open:
    """The call that is being read, as written so far. `begin`: its start."""

    begin: int
    name: str
    tool: Tool | None
    written: dict[str, str] = field(default_factory=dict)

    def to_call(self, end: str, text: str = "") -> ToolCall:
        """Return the call, its arguments with this end."""
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in self.written.items())
        return ToolCall(name=self.name, arguments="{" + inside + end, text=text)

    def lacks(self, name: str) -> bool:
        """Return whether the tool declares this parameter and nothing of it was written."""
        declared = properties_of(self.tool.parameters) if self.tool else {}
        return name in declared and name not in self.written


@dataclass(frozen=True, slots=True)
class _Missed:
    """The end of a value whose closing tag is missing. `is_sure`: no later text changes it, because
    another call begins at `behind`."""

    at: int
    is_sure: bool
    behind: int


@dataclass(slots=True)
class XmlReader:
    """Reading one text from the left. `is_closed`: the last call is over. `is_in_value`: the text
    ends in a parameter's value."""

    tags: XmlTags
    text: str
    tools: Sequence[Tool]
    is_whole: bool
    is_over: bool = False
    calls: list[ToolCall] = field(default_factory=list)
    at: int = 0
    is_closed: bool = True
    is_in_value: bool = False
    by_name: Mapping[str, Tool] = field(default_factory=dict)

    def run(self) -> None:
        """Read call after call, as far as they go."""
        self.by_name = {tool.name: tool for tool in self.tools}
        while self.is_closed and (self._read_call() or self._skip()):
            pass

    def _skip(self) -> bool:
        """Continue with the next call after text between calls; return whether there is one."""
        if not (self.tags.tail and self.calls and self.text[self.at :].strip()):
            return False
        head = pattern(self.tags.head, self.tags.before).search(self.text, self.at)
        if head is None:
            return False
        between = self.text[self.at : head.start()]
        self.calls.append(ToolCall(name="", arguments="", text=between))
        self.at = head.start()
        return True

    def _read_call(self) -> bool:
        """Read one call; return whether there is one."""
        tags = self.tags
        head = pattern(tags.head, tags.before).match(self.text, self.at)
        if head is None or (not tags.tail and not self._is_sure(head.end())):
            return False
        name = tags.named(head[NAME])
        call = _Open(self.at, name, self.by_name.get(name))
        self.at = head.end()
        self.is_closed = False
        key = pattern(tags.key)
        while (match := key.match(self.text, self.at)) is not None:
            schema = self._schema(name, match)
            if not self._read_value(match, schema, call):
                self.calls.append(call.to_call("}" if self.is_closed else ""))
                return True
        self._read_tail()
        if self.is_closed or not self._break_off(call):
            self.calls.append(call.to_call("}" if self.is_closed else ""))
        return True

    def _schema(self, name: str, key: re.Match[str]) -> Mapping[str, Any]:
        """Return a parameter's declared schema, narrowed by the type that the model writes: text if
        allowed, else a value. A value may be null or a quoted string if text is declared."""
        declared = schema_of_parameter(self.by_name, name, self.tags.named(key[NAME]))
        said = key.groupdict().get(TYPE)
        allowed = kinds(declared)
        if said is None:
            return declared
        if said == self.tags.text_type:
            return {"type": "string"} if allowed is None or "string" in allowed else declared
        return {**declared, "type": ["string", "null"]} if is_text(declared) else declared

    def _is_sure(self, at: int) -> bool:
        """Return whether a head that no tag closes is one: a parameter follows, or nothing."""
        has_key = pattern(self.tags.key).match(self.text, at) is not None
        return has_key or (self.is_whole and not self.text[at:].strip())

    def _read_tail(self) -> None:
        tags = self.tags
        match = (
            pattern(tags.tail, after=tags.after).match(self.text, self.at) if tags.tail else None
        )
        if match is not None:
            self.at = match.end()
        has_next = tags.tail and pattern(tags.head, tags.before).match(self.text, self.at)
        is_end = self.is_whole and not self.text[self.at :].strip()
        self.is_closed = match is not None or bool(has_next) or is_end

    def _break_off(self, call: _Open) -> bool:
        """Leave a call that contains other text at its end or at the next call; return whether that
        position is known."""
        tags = self.tags
        rest = self.text[self.at :].lstrip()
        words = [tag.partition(NAME)[0] for tag in (tags.key, tags.tail, tags.head, tags.before)]
        if not tags.tail or any(w and (rest.startswith(w) or w.startswith(rest)) for w in words):
            return False
        places = [
            place
            for place in (
                pattern(tags.tail, after=tags.after).search(self.text, self.at),
                pattern(tags.head, tags.before).search(self.text, self.at),
            )
            if place is not None
        ]
        if not places:
            return False
        first = min(places, key=lambda place: place.start())
        self.at = first.end() if first.re is pattern(tags.tail, after=tags.after) else first.start()
        self.calls.append(call.to_call("", self.text[call.begin : self.at]))
        self.is_closed = True
        return True

    def _read_value(self, key: re.Match[str], schema: Mapping[str, Any], call: _Open) -> bool:
        """Read a value; return whether the call continues. Mutates: call"""
        name = self.tags.named(key[NAME])
        start, end = key.end(), self._value_end(key.end(), schema)
        missed = self._missed(start, end, schema, call, name)
        if missed is not None and (self.is_whole or missed.is_sure):
            end = missed.at
        elif missed is not None:
            end = None
        elif end is None and self.is_whole:
            end = self._call_end(start)
        is_new = name not in call.written
        if end is None:
            self.is_in_value = True
            if is_new and is_text(schema):
                text = self.text[start : missed.at if missed else None]
                call.written[name] = quoted(self.tags.held(text)).removesuffix('"')
            return False
        if is_new:
            call.written[name] = as_json(self.tags.value(self.text[start:end]), schema)
        closed = closers(self.tags.value_end).match(self.text, end)
        self.at = closed.end() if closed else end
        if missed is not None and missed.is_sure:
            self.at = missed.behind
            self.is_closed = True
        return not self.is_closed

    def _missed(
        self, start: int, end: int | None, schema: Mapping[str, Any], call: _Open, own: str
    ) -> _Missed | None:
        """Return the end of a value whose closing tag was left out: where another call begins, or
        another parameter that the tool declares and the call has nowhere else."""
        stop = len(self.text) if end is None else end
        is_bare = not (self.tags.is_wrapped and self.text.startswith("\n", start))
        num_seen = 0
        for match in inner(self.tags).finditer(self.text, start, stop):
            name, head = match[NAME], match[HEAD]
            if head is None and (name == own or not call.lacks(name)):
                continue
            num_seen += 1
            if num_seen > MAX_SUSPECTS:
                break
            is_meant = (
                self._is_call(head, name)
                if head is not None
                else self.tags.is_special
                or self._is_apart(match, start, stop)
                or (is_bare and self._is_amid(match, start, stop))
            )
            if not is_meant or not self._is_outside(start, match.start(), schema):
                continue
            if head is not None:
                return _Missed(match.start(), True, match.start(CALL))
            if not self.is_whole or name not in self._names_behind(end):
                return _Missed(match.start(), False, match.start())
        return None

    def _is_call(self, head: str, name: str) -> bool:
        """Return whether a tool that was offered has this parameter."""
        tool = self.by_name.get(head)
        return tool is not None and name in properties_of(tool.parameters)

    def _is_apart(self, key: re.Match[str], start: int, stop: int) -> bool:
        """Return whether a parameter's tag is where a template writes one, with a value before and
        after it."""
        behind = self.text[key.end() : stop]
        is_lined = key[LINE] is not None and (not self.tags.is_wrapped or behind[:1] in ("", "\n"))
        return self._is_amid(key, start, stop) and (self.tags.has_pair or is_lined)

    def _is_amid(self, key: re.Match[str], start: int, stop: int) -> bool:
        """Return whether a value has text before and after a tag."""
        return bool(self.text[start : key.start()].strip() and self.text[key.end() : stop].strip())

    def _is_outside(self, start: int, at: int, schema: Mapping[str, Any]) -> bool:
        """Return whether a position in a value is outside its JSON strings."""
        return is_text(schema) or not _ends_in_string(self.text[start:at])

    def _names_behind(self, end: int | None) -> Iterator[str]:
        """Yield the parameters that follow a value's closing tag in the same call."""
        key = pattern(self.tags.key)
        while end is not None and end >= 0:
            found = key.match(self.text, end + len(self.tags.value_end))
            if found is None:
                return
            yield found[NAME]
            end = self.text.find(self.tags.value_end, found.end())

    def _call_end(self, start: int) -> int | None:
        """Return where the call's end closes a value without a closing tag, or None."""
        tail = self.tags.tail
        at = self.text.rfind(tail, start) if tail else -1
        rest = self.text[at + len(tail) :].strip()
        if at >= 0 and rest in ("", self.tags.after):
            return at
        return len(self.text) if self.is_over else None

    def _value_end(self, start: int, schema: Mapping[str, Any]) -> int | None:
        """Return the position of the closing tag: in JSON the first one outside a string."""
        tag = self.tags.value_end
        opening, closing = self.tags.wrapper
        if opening and self.text[start:].lstrip().startswith(opening):
            start = max(start, self.text.find(closing, start))
            if not self.text.startswith(closing, start):
                return None
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
        """Return whether the call's next tag follows a closing tag."""
        tags = (self.tags.tail, self.tags.key)
        return not all(tag and pattern(tag).match(self.text, at) is None for tag in tags)


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
