"""Calls written as a name and an object, with marks instead of quotes around strings.

`MarkedCalls` says what precedes the name and which mark it is. Arguments become JSON one by one;
what is reported for a prefix stays true for every longer text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    FreeText,
    JsonSchema,
    concat,
    optional,
    separated,
)
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.json_text import loads, skip_blanks
from dovetail_plugins.syntax.literals import CutLiteral, Literals
from dovetail_plugins.syntax.parameters import (
    MAX_OPEN,
    OPEN_NAME,
    Parameter,
    arguments_constraint,
    is_open,
    parameters_of,
    schema_of_parameter,
)
from dovetail_plugins.syntax.plain_text import text_constraint
from dovetail_plugins.syntax.schemas import is_text, kinds

_NAME = re.compile(r"[\w.\-]+")
_SCALARS = frozenset({"integer", "number", "boolean", "null"})


@dataclass(slots=True)
class _Read:
    """A call as far as it was read. `fault`: why reading stopped, if not because the text did."""

    name: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    end: int | None = None
    fault: str = ""
    is_cut: bool = False
    is_cut_in_string: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedCalls:
    """`head` name { key : value , ... }, with `mark` on both sides of a string."""

    head: str
    mark: str

    def parse(self, text: str, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Return the call of a whole text. Raises: MalformedToolCall, UnfinishedToolCall"""
        found = self._read(text, tools)
        if found.is_cut_in_string:
            raise UnfinishedToolCall("a string is not closed")
        if found.is_cut or found.end is None or text[found.end :].strip():
            raise MalformedToolCall(found.fault or "no call, or one that is cut")
        return [_call_of(found)]

    def so_far(self, text: str, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Return the call that a beginning of such a text is sure to hold, if any."""
        found = self._read(text, tools)
        return [_call_of(found)] if found.name else []

    def constraint(self, tool: Tool, *, before: str, after: str) -> Constraint | None:
        """Return the text of one call, or None if its schema needs more than plain values."""
        parameters = parameters_of(tool)
        written = [self._argument_constraint(parameter) for parameter in parameters or ()]
        known = [constraint for constraint in written if constraint is not None]
        if parameters is None or len(known) < len(parameters) or not _NAME.fullmatch(tool.name):
            return None
        inside = arguments_constraint(parameters, known, ",")
        if is_open(tool) and not known:
            text = concat(self.mark, FreeText((self.mark,)), self.mark)
            value = Choice((text, JsonSchema({"type": ["number", "boolean"]}, whitespace="")))
            inside = optional(separated(concat(OPEN_NAME, ":", value), ",", MAX_OPEN))
        return concat(f"{before}{self.head}{tool.name}{{", inside, "}" + after)

    def _argument_constraint(self, parameter: Parameter) -> Constraint | None:
        value: Constraint | None = None
        if is_text(parameter.schema):
            inside = text_constraint(parameter.schema, self.mark)
            value = concat(self.mark, inside) if inside else None
        elif (kinds(parameter.schema) or {""}) <= _SCALARS:
            value = JsonSchema({**parameter.schema, "title": parameter.name}, whitespace="")
        if value is None or not _NAME.fullmatch(parameter.name):
            return None
        return concat(f"{parameter.name}:", value)

    def _read(self, text: str, tools: Sequence[Tool]) -> _Read:
        read = _Read()
        head = re.compile(rf"\s*{re.escape(self.head)}({_NAME.pattern})\s*{{").match(text)
        if head is None:
            return read
        read.name = head[1]
        try:
            self._read_arguments(text, head.end(), read, {tool.name: tool for tool in tools})
        except UnfinishedToolCall:
            read.is_cut_in_string = True
        except CutLiteral:
            read.is_cut = True
        except MalformedToolCall as error:
            read.fault = str(error)
        return read

    def _read_arguments(self, text: str, at: int, found: _Read, tools: Mapping[str, Tool]) -> None:
        """Read whole arguments to the closing brace. Mutates: found"""
        notation = Literals(self.mark)
        at = skip_blanks(text, at)
        while text[at : at + 1] != "}":
            key, at = notation.key(text, at)
            schema = schema_of_parameter(tools, found.name, loads(key[:-2]))
            value, at = notation.value(text, at, schema=schema)
            at = skip_blanks(text, at)
            if at >= len(text):
                raise CutLiteral("a value that may go on")
            if text[at] not in ",}":
                raise MalformedToolCall(f"no comma at character {at + 1}")
            found.parts.setdefault(key, value)
            at = skip_blanks(text, at + 1) if text[at] == "," else at
        found.end = at + 1


def _call_of(found: _Read) -> ToolCall:
    inside = ", ".join(key + value for key, value in found.parts.items())
    return ToolCall(name=found.name, arguments="{" + inside + ("}" if found.end else ""))
