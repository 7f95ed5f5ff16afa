"""Calls written as Python calls with keyword arguments: whole, half written, and their constraint.

`PythonCalls` says how a family puts several of them together. Arguments become JSON, one by one,
and what was said of a beginning stays true of every longer text. Nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.interfaces.constraint import Constraint, JsonSchema, concat, optional, separated
from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.syntax.json_text import quoted, skip_blanks
from dovetail.syntax.literals import PYTHON, CutLiteral
from dovetail.syntax.parameters import (
    MAX_OPEN,
    OPEN_NAME,
    Parameter,
    arguments_constraint,
    is_open,
    parameters_of,
    schema_of_parameter,
)

_HEAD = re.compile(r"([A-Za-z_][\w.\-]*)[ \t]*\(")
_KEY = re.compile(r"([A-Za-z_][\w\-]*)\s*=(?!=)")
_PART_OF_HEAD = re.compile(r"[A-Za-z_][\w.\-]*[ \t]*")
_PART_OF_KEY = re.compile(r"[A-Za-z_][\w\-]*\s*=?")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
DIVIDERS = ",;"
MAX_PARTS = 4096
"""How many calls and arguments one text may hold."""


@dataclass(slots=True)
class _Call:
    """A call as far as it was read. `is_sure`: no text that follows can make it none."""

    name: str
    parts: dict[str, str] = field(default_factory=dict)
    is_closed: bool = False
    is_sure: bool = False

    def made(self) -> ToolCall:
        """Return the call, its arguments as far as they go."""
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in self.parts.items())
        return ToolCall(name=self.name, arguments="{" + inside + ("}" if self.is_closed else ""))


@dataclass(slots=True)
class _Read:
    """The calls read from a text. `begin`: where the last call does. `end`: where the calls are
    over. `fault`: why reading stopped, if not because the text did."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    num_parts: int = 0
    at: int = 0
    begin: int = 0
    end: int | None = None
    fault: str = ""
    is_cut: bool = False
    is_cut_in_string: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """`is_list`: calls stand in brackets, and the closing one ends them. Else they follow each
    other, divided by blanks, commas or semicolons. `wrapper` is a function whose argument is the
    call itself (print, say)."""

    is_list: bool = True
    wrapper: str = ""

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Return the calls of a whole text.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a string.
        """
        reading = self.read(text, tools)
        if reading.is_cut_in_string:
            raise UnfinishedToolCall("a string is not closed")
        over = reading.end if self.is_list else reading.at
        is_whole = bool(reading.calls) and all(call.is_closed for call in reading.calls)
        if reading.is_cut or not is_whole or over is None or text[over:].strip():
            raise MalformedToolCall(reading.fault or "no calls, or one that is cut")
        return [call.made() for call in reading.calls]

    def so_far(self, text: str, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        reading = self.read(text, tools)
        sure = [call.made() for call in reading.calls if call.is_sure]
        if reading.fault and not sure:
            raise MalformedToolCall(reading.fault)
        return sure

    def end(self, text: str) -> int | None:
        """Return where a list of calls is over, or None while more of it may follow."""
        found = self.read(text)
        return found.at if found.fault else found.end

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call, or None where its schema does not divide into arguments."""
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
            while found.end is None and found.at < len(text):
                self._read_item(text, found)
        except UnfinishedToolCall:
            found.is_cut_in_string = True
        except CutLiteral:
            found.is_cut = True
        except MalformedToolCall as error:
            found.fault = str(error)
            if found.calls and not found.calls[-1].is_sure:
                found.calls.pop()
                found.at = found.begin
        return found

    def _read_item(self, text: str, found: _Read) -> None:
        """Read one call and what divides it from the next. Mutates: found"""
        if self.is_list and text[found.at] == "]":
            self._close_list(found)
            return
        self._read_call(text, found)
        call = found.calls[-1]
        at = skip_blanks(text, found.at)
        call.is_sure = call.is_sure or not self.is_list or text[at : at + 1] in (",", "]")
        found.at = at
        if self.is_list and at < len(text) and text[at] not in ",]":
            raise MalformedToolCall(f"no comma at character {at + 1}")
        while found.at < len(text) and text[found.at] in ("," if self.is_list else DIVIDERS):
            found.at = skip_blanks(text, found.at + 1)

    def _close_list(self, found: _Read) -> None:
        if not found.calls:
            raise MalformedToolCall("an empty list")
        found.at += 1
        found.end = found.at

    def _read_call(self, text: str, found: _Read) -> None:
        """Read one call, wrapped or not; the place moves past what was read. Mutates: found"""
        head = self._head(text, found.at)
        is_wrapped = head[1] == self.wrapper and _HEAD.match(text, head.end()) is not None
        if is_wrapped:
            head = self._head(text, head.end())
        self._count(found)
        call = _Call(head[1])
        found.calls.append(call)
        found.begin = found.at
        found.at = skip_blanks(text, head.end())
        while text[found.at : found.at + 1] != ")":
            self._read_argument(text, call, found)
        found.at += 1
        call.is_closed = True
        if is_wrapped:
            self._expect(text, ")", found)

    def _head(self, text: str, at: int) -> re.Match[str]:
        head = _HEAD.match(text, at)
        if head is not None and (head[1] != self.wrapper or _goes_on(text, head.end())):
            return head
        if head is not None or _PART_OF_HEAD.fullmatch(text, at) or at >= len(text):
            raise CutLiteral("a name is cut")
        raise MalformedToolCall(f"no call at character {at + 1}")

    def _read_argument(self, text: str, call: _Call, found: _Read) -> None:
        """Read one argument with the comma behind it. Mutates: call, found"""
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
    return bool(rest) and not _PART_OF_HEAD.fullmatch(rest)


def _argument_constraint(parameter: Parameter) -> Constraint:
    return concat(f"{parameter.name}=", JsonSchema({**parameter.schema, "title": parameter.name}))
