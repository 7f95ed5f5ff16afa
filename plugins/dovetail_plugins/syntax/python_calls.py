"""Calls written as Python calls with keyword arguments: whole, half written, and their constraint.

`PythonCalls` says how a family combines several of them. Arguments become JSON, one by one, and
what is reported for a prefix stays true for every longer text. It evaluates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat, optional, separated
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.json_text import quoted, skip_blanks
from dovetail_plugins.syntax.literals import PYTHON, CutLiteral
from dovetail_plugins.syntax.parameters import (
    MAX_OPEN,
    OPEN_NAME,
    Parameter,
    arguments_constraint,
    is_open,
    parameters_of,
    schema_of_parameter,
)
from dovetail_plugins.syntax.python_resync import HEAD, PART_OF_HEAD, next_call

_KEY = re.compile(r"([A-Za-z_][\w\-]*)\s*=(?!=)")
_PART_OF_KEY = re.compile(r"[A-Za-z_][\w\-]*\s*=?")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
DIVIDERS = ",;"
MAX_PARTS = 4096
"""How many calls and arguments one text may hold."""


@dataclass(slots=True)
class _Call:
    """A call as far as it has been read. `is_sure`: no text that follows can undo it. `text`: the
    source text of a broken call, once its end is known."""

    name: str
    parts: dict[str, str] = field(default_factory=dict)
    is_closed: bool = False
    is_sure: bool = False
    text: str = ""

    @property
    def is_call(self) -> bool:
        """Return whether it is a whole call."""
        return self.is_closed and not self.text

    def to_call(self) -> ToolCall:
        """Return the call, its arguments as far as they have been read."""
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in self.parts.items())
        arguments = "{" + inside + ("}" if self.is_closed else "")
        return ToolCall(name=self.name, arguments=arguments, text=self.text)


@dataclass(slots=True)
class _Read:
    """The calls read from a text. `begin`: start of the last call. `end`: end of the calls.
    `is_lost`: a call is broken and no later one was seen; `fault`: why none can follow."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    num_parts: int = 0
    at: int = 0
    begin: int = 0
    end: int | None = None
    fault: str = ""
    is_lost: bool = False
    is_cut: bool = False
    is_cut_in_string: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the last call is neither closed nor left as broken."""
        last = self.calls[-1] if self.calls else None
        return last is not None and not last.is_closed and not last.text


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """`is_list`: calls are in brackets, and the closing bracket ends them. Else they follow each
    other, divided by blanks, commas or semicolons. `wrapper` is a function whose argument is the
    call itself (print, say). `is_tagged`: a tag announces calls, so a head that is no call is
    broken, not prose. Text between calls that is no call is passed on as text."""

    is_list: bool = True
    is_tagged: bool = False
    wrapper: str = ""

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Return the calls of a whole text.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a string.
        """
        reading = self.read(text, tools)
        if reading.is_cut_in_string:
            raise UnfinishedToolCall("a string is not closed")
        if reading.is_lost and any(call.is_call for call in reading.calls):
            self._leave(text, len(text), reading)
            reading.end = reading.at
        over = reading.end if self.is_list else reading.at
        is_whole = all(call.is_closed or call.text for call in reading.calls)
        is_some = is_whole and any(call.is_call for call in reading.calls)
        if reading.is_cut or not is_some or over is None or text[over:].strip():
            raise MalformedToolCall(reading.fault or "no calls, or one that is cut")
        return [call.to_call() for call in reading.calls]

    def so_far(self, text: str, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        reading = self.read(text, tools)
        sure = [call.to_call() for call in reading.calls if call.is_sure]
        if reading.fault and not any(call.name for call in sure):
            raise MalformedToolCall(reading.fault)
        return sure

    def end(self, text: str) -> int | None:
        """Return where a list of calls ends, or None while more of it may follow."""
        found = self.read(text)
        return found.at if found.fault else found.end

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call, or None if its schema does not divide into arguments."""
        parameters = parameters_of(tool)
        if parameters is None or not _NAME.fullmatch(tool.name):
            return None
        if not all(_KEY.fullmatch(parameter.name + "=") for parameter in parameters):
            return None
        if is_open(tool) and not parameters:
            some = separated(concat(OPEN_NAME, "=", JsonSchema()), ", ", MAX_OPEN)
            return concat(f"{tool.name}(", optional(some), ")")
        written = [_argument_constraint(parameter) for parameter in parameters]
        return concat(f"{tool.name}(", arguments_constraint(parameters, written, ", "), ")")

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of one to `most` calls."""
        if not self.is_list:
            return separated(call, "\n", most)
        return concat("[", separated(call, ", ", most), "]")

    def read(self, text: str, tools: Sequence[Tool] = ()) -> _Read:
        """Return the calls of a text, as far as it goes."""
        found = _Read(at=skip_blanks(text), tools={tool.name: tool for tool in tools})
        try:
            if self.is_list:
                self._expect(text, "[", found)
            while found.end is None and found.at < len(text) and not found.is_lost:
                self._read_item(text, found)
        except UnfinishedToolCall:
            found.is_cut_in_string = True
        except CutLiteral:
            found.is_cut = True
        except MalformedToolCall as error:
            found.fault = str(error)
        return found

    def _read_item(self, text: str, found: _Read) -> None:
        """Read one call and its divider. Mutates: found"""
        if self.is_list and text[found.at] == "]":
            self._close_list(found)
            return
        found.begin = found.at
        try:
            self._read_whole(text, found)
        except (CutLiteral, UnfinishedToolCall):
            raise
        except MalformedToolCall as error:
            self._break_off(text, found, str(error))
        while found.at < len(text) and text[found.at] in ("," if self.is_list else DIVIDERS):
            found.at = skip_blanks(text, found.at + 1)

    def _read_whole(self, text: str, found: _Read) -> None:
        """Read one call, and see whether it is one by what follows. Mutates: found"""
        self._read_call(text, found)
        call = found.calls[-1]
        found.at = skip_blanks(text, found.at)
        call.is_closed = not self.is_list or text[found.at : found.at + 1] in (",", "]")
        call.is_sure = call.is_sure or call.is_closed
        if not call.is_closed and found.at < len(text):
            raise MalformedToolCall(f"no comma at character {found.at + 1}")

    def _break_off(self, text: str, found: _Read, fault: str) -> None:
        """Leave a broken call and continue with what follows it, if that is seen. Mutates: found

        Raises: MalformedToolCall if no call can follow.
        """
        self._count(found)
        if found.calls and not found.calls[-1].is_sure:
            found.calls.pop()
            found.at = found.begin
        elif not found.is_open:
            found.begin = found.at
        is_open = self.is_tagged or bool(found.calls)
        if not is_open and HEAD.match(text, found.begin) is None:
            raise MalformedToolCall(fault)
        is_first = not (self.is_tagged or any(call.is_call for call in found.calls))
        try:
            at = next_call(text, found.begin, found.at, is_list=self.is_list, is_first=is_first)
        except MalformedToolCall as error:
            found.is_lost = True
            raise MalformedToolCall(fault) from error
        if at is None:
            found.is_lost = True
        else:
            self._leave(text, at, found)

    def _leave(self, text: str, at: int, found: _Read) -> None:
        """Continue at this position after a broken call, which is text. Mutates: found"""
        if not found.is_open:
            found.calls.append(_Call(""))
        found.calls[-1].text = text[found.begin : at]
        found.calls[-1].is_sure = True
        found.at = at

    def _close_list(self, found: _Read) -> None:
        if not any(call.is_call for call in found.calls):
            raise MalformedToolCall("no call is in the list")
        found.at += 1
        found.end = found.at

    def _read_call(self, text: str, found: _Read) -> None:
        """Read one call, wrapped or not; the place moves past what was read. Mutates: found"""
        head = self._head(text, found.at)
        is_wrapped = head[1] == self.wrapper and HEAD.match(text, head.end()) is not None
        if is_wrapped:
            head = self._head(text, head.end())
        self._count(found)
        call = _Call(head[1])
        found.calls.append(call)
        found.at = skip_blanks(text, head.end())
        while text[found.at : found.at + 1] != ")":
            self._read_argument(text, call, found)
        found.at += 1
        if is_wrapped:
            self._expect(text, ")", found)

    def _head(self, text: str, at: int) -> re.Match[str]:
        head = HEAD.match(text, at)
        if head is not None and (head[1] != self.wrapper or _goes_on(text, head.end())):
            return head
        if head is not None or PART_OF_HEAD.fullmatch(text, at) or at >= len(text):
            raise CutLiteral("a name is cut")
        raise MalformedToolCall(f"no call at character {at + 1}")

    def _read_argument(self, text: str, call: _Call, found: _Read) -> None:
        """Read one argument and the comma after it. Mutates: call, found"""
        key = _KEY.match(text, found.at)
        if key is None or key.end() >= len(text):
            if found.at >= len(text) or _PART_OF_KEY.fullmatch(text, found.at):
                raise CutLiteral("a name is cut")
            raise MalformedToolCall(f"no keyword at character {found.at + 1}")
        schema = schema_of_parameter(found.tools, call.name, key[1])
        value, at = PYTHON.value(text, skip_blanks(text, key.end()), schema=schema)
        at = skip_blanks(text, at)
        if at >= len(text):
            raise CutLiteral("a value that may go on")
        if text[at] not in ",)":
            raise MalformedToolCall(f"no comma at character {at + 1}")
        call.parts.setdefault(key[1], value)
        self._count(found)
        call.is_sure = True
        found.at = skip_blanks(text, at + 1) if text[at] == "," else at

    def _count(self, found: _Read) -> None:
        found.num_parts += 1
        if found.num_parts > MAX_PARTS:
            raise MalformedToolCall("too many calls and arguments")

    def _expect(self, text: str, character: str, found: _Read) -> None:
        at = skip_blanks(text, found.at)
        if at >= len(text):
            raise CutLiteral(f"no {character} yet")
        if text[at] != character:
            raise MalformedToolCall(f"no {character} at character {at + 1}")
        found.at = skip_blanks(text, at + 1)


def _goes_on(text: str, at: int) -> bool:
    """Return whether enough follows a wrapper's bracket to know if a call is its argument."""
    rest = text[at:].lstrip()
    return bool(rest) and not PART_OF_HEAD.fullmatch(rest)


def _argument_constraint(parameter: Parameter) -> Constraint:
    return concat(f"{parameter.name}=", JsonSchema({**parameter.schema, "title": parameter.name}))
