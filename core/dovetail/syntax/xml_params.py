"""Calls written as tags, with a tag for every parameter: whole, half written, and their form.

`XmlCalls` says which tags a family uses. Arguments become JSON by the tool's schema, one parameter
after the other; a string is passed on while it is written. What `so_far` has once said of a
beginning stays true of every longer text.

Models leave closing tags out. A value may also hold tags, so one ends before its own closing tag
only where the tag of a parameter stands that the tool declares and the call lacks otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dovetail.interfaces.form import Form, Json, Repeat, optional, sequence
from dovetail.interfaces.text import Markers, Tool, ToolCall
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
MAX_SUSPECTS = 8
"""How many tags in one value are asked whether it is over there."""
MAX_KEY_CHARS = 256
NAME = "NAME"
HEAD, CALL, LINE = "HEAD", "CALL", "LINE"
_NAME = re.compile(r"[^\s<>{}\"'=,]+")
_LINE_END = re.compile(r"\n[ \t]*\Z")
_NAME_FIRST = re.compile(rf"(?:{_NAME.pattern})?+\s*+(?:<|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlCalls:
    """The tags of a call: `before` `head` (`key` value `value_end`)* `tail` `after`.

    NAME stands for the function's or parameter's name, a blank for any blanks or none. `before` and
    `after` may be missing. `tail` empty: the region's end is the call's. `is_wrapped`: a line end
    on either side of a value is not the value's. `gap` is written between the tags. `region` are
    the tags around a call that has a region of its own.
    """

    head: str
    key: str
    value_end: str
    tail: str = ""
    before: str = ""
    after: str = ""
    is_wrapped: bool = False
    gap: str = "\n"
    region: Markers | None = None

    def parse(self, text: str, tools: Sequence[Tool], *, is_over: bool = False) -> list[ToolCall]:
        """Return the calls of a whole text. `is_over`: a value that is open ends with it.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a value.
        """
        read = _Reading(self, text, tools, is_whole=True, is_over=is_over)
        read.run()
        if read.is_in_value:
            raise UnfinishedToolCall("a value is not closed")
        is_none = all(call.text for call in read.calls)
        if is_none or not read.is_closed or text[read.at :].strip():
            raise MalformedToolCall(f"no call at character {read.at + 1}")
        return read.calls

    def so_far(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        read = _Reading(self, text, tools, is_whole=False)
        read.run()
        if not read.calls and not self._can_begin(text.lstrip()):
            raise MalformedToolCall("no call begins like this")
        return read.calls

    def _can_begin(self, text: str) -> bool:
        """Return whether a call may begin so, by the first word of its tags."""
        if self.head.startswith(NAME):
            return _NAME_FIRST.match(text) is not None
        words = [tag.partition(NAME)[0].split()[0] for tag in (self.before, self.head) if tag]
        return any(text.startswith(word) or word.startswith(text) for word in words)

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

    @property
    def has_pair(self) -> bool:
        """Return whether a parameter's name has a tag of its own: no text is taken for that."""
        return self.key.count(">") > 1

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the texts with which a call is over."""
        return tuple(tag for tag in (self.tail, self.region.end if self.region else "") if tag)

    def held(self, text: str) -> str:
        """Return of a growing value what no tag, and no line end before one, can take."""
        cut = min((at for end in self.ends if (at := text.find(end)) >= 0), default=len(text))
        text = text[:cut]
        last = text.rfind("<")
        if last >= 0 and any(tag.startswith(text[last:]) for tag in (self.value_end, *self.ends)):
            text = text[:last]
        key = self.key.partition(NAME)[0].split()[0]
        begun = text.rfind(key, max(0, len(text) - MAX_KEY_CHARS))
        if begun >= 0 and _pattern(self.key).match(text, begun) is None:
            text = text[:begun]
        elif last >= 0 and key.startswith(text[last:]):
            text = text[:last]
        return self.value(_LINE_END.sub("", text))


@dataclass(slots=True)
class _Open:
    """The call that is being read: what was written of it. `begin`: where it begins."""

    begin: int
    name: str
    tool: Tool | None
    written: dict[str, str] = field(default_factory=dict)

    def made(self, end: str, text: str = "") -> ToolCall:
        """Return the call, its arguments with this end."""
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in self.written.items())
        return ToolCall(name=self.name, arguments="{" + inside + end, text=text)

    def lacks(self, name: str) -> bool:
        """Return whether the tool declares a parameter of which nothing was written."""
        declared = self.tool.parameters.get("properties") if self.tool else None
        return isinstance(declared, dict) and name in declared and name not in self.written

    def needs(self, name: str) -> bool:
        """Return whether the tool requires a parameter."""
        required = self.tool.parameters.get("required") if self.tool else None
        return isinstance(required, list) and name in required


@dataclass(frozen=True, slots=True)
class _Missed:
    """Where a value without its closing tag is over. `is_sure`: whatever follows, as another call
    begins; then `behind` is where."""

    at: int
    is_sure: bool
    behind: int


@dataclass(slots=True)
class _Reading:
    """Reading one text from the left. `is_closed`: the last call is over. `is_in_value`: the text
    ends in a parameter's value."""

    tags: XmlCalls
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
        """Go on with the next call behind text between calls; return whether there is one."""
        if not (self.tags.tail and self.calls and self.text[self.at :].strip()):
            return False
        head = _pattern(self.tags.head, self.tags.before).search(self.text, self.at)
        if head is None:
            return False
        between = self.text[self.at : head.start()]
        self.calls.append(ToolCall(name="", arguments="", text=between))
        self.at = head.start()
        return True

    def _read_call(self) -> bool:
        """Read one call; return whether there is one."""
        tags = self.tags
        head = _pattern(tags.head, tags.before).match(self.text, self.at)
        if head is None or (not tags.tail and not self._is_sure(head.end())):
            return False
        call = _Open(self.at, head[NAME], self.by_name.get(head[NAME]))
        self.at = head.end()
        self.is_closed = False
        key = _pattern(tags.key)
        while (found := key.match(self.text, self.at)) is not None:
            schema = schema_of_parameter(self.by_name, head[NAME], found[NAME])
            if not self._read_value(found, schema, call):
                self.calls.append(call.made("}" if self.is_closed else ""))
                return True
        self._read_tail()
        if self.is_closed or not self._break_off(call):
            self.calls.append(call.made("}" if self.is_closed else ""))
        return True

    def _is_sure(self, at: int) -> bool:
        """Return whether a head that no tag closes is one: a parameter follows, or nothing."""
        has_key = _pattern(self.tags.key).match(self.text, at) is not None
        return has_key or (self.is_whole and not self.text[at:].strip())

    def _read_tail(self) -> None:
        tags = self.tags
        found = (
            _pattern(tags.tail, after=tags.after).match(self.text, self.at) if tags.tail else None
        )
        if found is not None:
            self.at = found.end()
        has_next = tags.tail and _pattern(tags.head, tags.before).match(self.text, self.at)
        is_end = self.is_whole and not self.text[self.at :].strip()
        self.is_closed = found is not None or bool(has_next) or is_end

    def _break_off(self, call: _Open) -> bool:
        """Leave a call in which other text stands, where it is over or the next one begins; return
        whether that is known already."""
        tags = self.tags
        rest = self.text[self.at :].lstrip()
        words = [tag.partition(NAME)[0] for tag in (tags.key, tags.tail, tags.head, tags.before)]
        if not tags.tail or any(w and (rest.startswith(w) or w.startswith(rest)) for w in words):
            return False
        found = [
            place
            for place in (
                _pattern(tags.tail, after=tags.after).search(self.text, self.at),
                _pattern(tags.head, tags.before).search(self.text, self.at),
            )
            if place is not None
        ]
        if not found:
            return False
        first = min(found, key=lambda place: place.start())
        self.at = (
            first.end() if first.re is _pattern(tags.tail, after=tags.after) else first.start()
        )
        self.calls.append(call.made("", self.text[call.begin : self.at]))
        self.is_closed = True
        return True

    def _read_value(self, key: re.Match[str], schema: Mapping[str, Any], call: _Open) -> bool:
        """Read a value; return whether the call goes on. Mutates: call"""
        start, end = key.end(), self._value_end(key.end(), schema)
        missed = self._missed(start, end, schema, call, key[NAME])
        if missed is not None and (self.is_whole or missed.is_sure):
            end = missed.at
        elif missed is not None:
            end = None
        elif end is None and self.is_whole:
            end = self._call_end(start)
        is_new = key[NAME] not in call.written
        if end is None:
            self.is_in_value = True
            if is_new and is_text(schema):
                text = self.text[start : missed.at if missed else None]
                call.written[key[NAME]] = quoted(self.tags.held(text)).removesuffix('"')
            return False
        if is_new:
            call.written[key[NAME]] = as_json(self.tags.value(self.text[start:end]), schema)
        closers = _closers(self.tags.value_end).match(self.text, end)
        self.at = closers.end() if closers else end
        if missed is not None and missed.is_sure:
            self.at = missed.behind
            self.is_closed = True
        return not self.is_closed

    def _missed(
        self, start: int, end: int | None, schema: Mapping[str, Any], call: _Open, own: str
    ) -> _Missed | None:
        """Return where a value is over whose closing tag was left out: where another parameter
        begins that the tool declares and the call has nowhere else, or where another call does."""
        stop = len(self.text) if end is None else end
        is_bare, num_seen = not self.tags.is_wrapped, 0
        for found in _inner(self.tags).finditer(self.text, start, stop):
            name, head = found[NAME], found[HEAD]
            if head is None and (name == own or not call.lacks(name)):
                continue
            num_seen += 1
            if num_seen > MAX_SUSPECTS:
                break
            is_meant = (
                self._is_call(head, name)
                if head is not None
                else self._is_apart(found, start, stop) or (is_bare and call.needs(name))
            )
            if not is_meant or not self._is_outside(start, found.start(), schema):
                continue
            if head is not None:
                return _Missed(found.start(), True, found.start(CALL))
            if not self.is_whole or name not in self._names_behind(end):
                return _Missed(found.start(), False, found.start())
        return None

    def _is_call(self, head: str, name: str) -> bool:
        """Return whether a tool that was offered has this parameter."""
        tool = self.by_name.get(head)
        declared = tool.parameters.get("properties") if tool else None
        return isinstance(declared, dict) and name in declared

    def _is_apart(self, key: re.Match[str], start: int, stop: int) -> bool:
        """Return whether the tag of a parameter stands where a template writes one, with a value
        before it and one behind."""
        before, behind = self.text[start : key.start()], self.text[key.end() : stop]
        is_lined = key[LINE] is not None and (not self.tags.is_wrapped or behind[:1] in ("", "\n"))
        return bool(before.strip() and behind.strip()) and (self.tags.has_pair or is_lined)

    def _is_outside(self, start: int, at: int, schema: Mapping[str, Any]) -> bool:
        """Return whether a place of a value stands in no string of its JSON."""
        return is_text(schema) or not _ends_in_string(self.text[start:at])

    def _names_behind(self, end: int | None) -> Iterator[str]:
        """Yield the parameters that follow a value's closing tag in the same call."""
        key = _pattern(self.tags.key)
        while end is not None and end >= 0:
            found = key.match(self.text, end + len(self.tags.value_end))
            if found is None:
                return
            yield found[NAME]
            end = self.text.find(self.tags.value_end, found.end())

    def _call_end(self, start: int) -> int | None:
        """Return where the call's own end closes a value that its own tag does not, or None."""
        tail = self.tags.tail
        at = self.text.rfind(tail, start) if tail else -1
        rest = self.text[at + len(tail) :].strip()
        if at >= 0 and rest in ("", self.tags.after):
            return at
        return len(self.text) if self.is_over else None

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
def _inner(tags: XmlCalls) -> re.Pattern[str]:
    """Return what matches, in a value, the tag of a parameter; or the end of the call, the
    beginning of another one, CALL, and its first parameter."""
    line, key = rf"(?P<{LINE}>\n[ \t]*)?", _worded(tags.key)
    tail = "".join(rf"\s*(?:{re.escape(tag)})?" for tag in (tags.tail, tags.after) if tag)
    region = tags.region
    if region is not None:
        tail += rf"\s*(?:{re.escape(region.end)}\s*{re.escape(region.start)})?"
    before = rf"(?:{re.escape(tags.before)}\s*)?" if tags.before else ""
    head = _worded(tags.head, HEAD)
    ends = "|".join(map(re.escape, tags.ends))
    call = rf"(?:(?={ends}){tail}\s*(?P<{CALL}>{before}{head})\s*)?"
    return re.compile(line + call + key)


@cache
def _closers(tag: str) -> re.Pattern[str]:
    """Return what matches a closing tag, none, or the same one several times."""
    return re.compile(rf"(?:{re.escape(tag)}(?:\s*{re.escape(tag)})*+)?")


@cache
def _pattern(tag: str, before: str = "", after: str = "") -> re.Pattern[str]:
    """Return what matches a tag: blanks before it, NAME a name, a blank any blanks or none."""
    optional_before = rf"(?:{re.escape(before)}\s*)?" if before else ""
    optional_after = rf"(?:\s*{re.escape(after)})?" if after else ""
    return re.compile(r"\s*" + optional_before + _worded(tag) + optional_after)


def _worded(tag: str, group: str = NAME) -> str:
    """Return a pattern for the words of a tag, NAME being this group."""
    words = r"\s*".join(re.escape(word) for word in tag.split())
    return words.replace(NAME, rf"(?P<{group}>{_NAME.pattern})")
