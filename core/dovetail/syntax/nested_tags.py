"""Arguments written as nested tags, a tag per key, every tag behind its own mark.

`{mark}<key>value{mark}</key>`: a value with tags in it is an object, or a list if they are items.
Arguments become JSON one by one; what was said of a beginning stays true of every longer text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.constraint import Constraint, JsonSchema, concat, optional
from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.syntax.json_text import quoted
from dovetail.syntax.parameters import (
    Parameter,
    as_json,
    is_open,
    parameters_of,
    schema_of_parameter,
)
from dovetail.syntax.plain_text import text_constraint
from dovetail.syntax.schemas import inner_schema, is_text, item_schema, kinds
from dovetail.syntax.type_words import with_json_types

ITEM = "item"
MAX_DEPTH = 32
_TAG = re.compile(r"<(/?)([^\s<>/]+)>")
_INVOKE = re.compile(r"<invoke name=\"([^\s<>\"]+)\">")
_SCALARS = frozenset({"integer", "number", "boolean", "null"})


@dataclass(slots=True)
class _Node:
    """An open tag: what was written in it."""

    name: str
    schema: Mapping[str, Any]
    text: str = ""
    parts: list[tuple[str, str]] = field(default_factory=list)

    def made(self) -> str:
        """Return the value as JSON text. Raises: MalformedToolCall"""
        if not self.parts:
            return self._empty() or as_json(self.text, self.schema)
        if self.text.strip():
            raise MalformedToolCall("text stands beside tags")
        if all(name == ITEM for name, _ in self.parts) and _may_be(self.schema, "array"):
            return f"[{', '.join(value for _, value in self.parts)}]"
        first = dict(reversed(self.parts))
        names = dict.fromkeys(name for name, _ in self.parts)
        return "{" + ", ".join(f"{quoted(name)}: {first[name]}" for name in names) + "}"

    def _empty(self) -> str:
        """Return the list or the object that a tag with nothing in it is, or ""."""
        allowed = kinds(with_json_types(self.schema))
        if self.text.strip() or allowed is None or "string" in allowed:
            return ""
        return "[]" if "array" in allowed else "{}" if "object" in allowed else ""

    def inner_schema(self, name: str) -> Mapping[str, Any]:
        """Return the schema of a tag within."""
        schema = with_json_types(self.schema)
        is_item = name == ITEM and _may_be(schema, "array")
        return (item_schema(schema) if is_item else {}) or inner_schema(schema, name)


@dataclass(slots=True)
class _Read:
    """The calls read from a text: those that are over, and the one that is open."""

    calls: list[ToolCall] = field(default_factory=list)
    name: str = ""
    parts: dict[str, str] = field(default_factory=dict)

    def made(self, end: str) -> ToolCall:
        """Return the open call, its arguments with this end."""
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in self.parts.items())
        return ToolCall(name=self.name, arguments="{" + inside + end)


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedTags:
    """Calls are `{mark}<invoke name="...">` ... `{mark}</invoke>`."""

    mark: str

    def parse(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of a whole text. Raises: MalformedToolCall"""
        read = _Read()
        self._run(text, tools, read, is_whole=True)
        if read.name or not read.calls:
            raise MalformedToolCall("no call, or one that is cut")
        return read.calls

    def so_far(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        read = _Read()
        try:
            self._run(text, tools, read, is_whole=False)
        except MalformedToolCall:
            if not (read.calls or read.name):
                raise
        return [*read.calls, read.made("")] if read.name else read.calls

    def _run(self, text: str, tools: Sequence[Tool], read: _Read, *, is_whole: bool) -> None:
        """Read tag after tag. Mutates: read. Raises: MalformedToolCall"""
        by_name = {tool.name: tool for tool in tools}
        open_ones: list[_Node] = []
        for tag, behind in self._pieces(text, is_whole):
            self._take(tag, by_name, read, open_ones)
            if open_ones:
                open_ones[-1].text += behind
            elif behind.strip():
                raise MalformedToolCall("text stands between tags")

    def _pieces(self, text: str, is_whole: bool) -> Iterator[tuple[str, str]]:
        """Yield (a tag, the text behind it); the last one only if it is whole."""
        first, *pieces = text.split(self.mark)
        if first.strip() and not (self.mark.startswith(first.strip()) and not is_whole):
            raise MalformedToolCall("text stands before the first tag")
        for number, piece in enumerate(pieces):
            tag = _INVOKE.match(piece) or _TAG.match(piece)
            is_last = number == len(pieces) - 1
            if tag is None and is_last and not is_whole and ">" not in piece:
                return
            if tag is None:
                raise MalformedToolCall("no tag behind a mark")
            behind = piece[tag.end() :]
            yield tag[0], "" if is_last and not is_whole and not behind.strip() else behind

    def _take(
        self, tag: str, by_name: Mapping[str, Tool], read: _Read, open_ones: list[_Node]
    ) -> None:
        """Open or close what a tag says. Mutates: read, open_ones. Raises: MalformedToolCall"""
        invoke, plain = _INVOKE.match(tag), _TAG.match(tag)
        if invoke is not None:
            if read.name:
                raise MalformedToolCall("a call within a call")
            read.name, read.parts = invoke[1], {}
            return
        assert plain is not None
        if not read.name:
            raise MalformedToolCall("a tag outside of a call")
        if not plain[1]:
            outer = open_ones[-1] if open_ones else None
            schema = (
                outer.inner_schema(plain[2])
                if outer
                else schema_of_parameter(by_name, read.name, plain[2])
            )
            open_ones.append(_Node(plain[2], schema))
            if len(open_ones) > MAX_DEPTH:
                raise MalformedToolCall("nested too deep")
        elif open_ones:
            self._close(plain[2], read, open_ones)
        elif plain[2] == "invoke":
            read.calls.append(read.made("}"))
            read.name = ""
        else:
            raise MalformedToolCall(f"</{plain[2]}> closes nothing")

    def _close(self, name: str, read: _Read, open_ones: list[_Node]) -> None:
        node = open_ones.pop()
        if node.name != name:
            raise MalformedToolCall(f"</{name}> stands for </{node.name}>")
        if open_ones:
            open_ones[-1].parts.append((name, node.made()))
        else:
            read.parts.setdefault(name, node.made())

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call, or None where its schema needs more than plain values, or
        says nothing: a tag's name must come again at its end."""
        parameters = parameters_of(tool)
        if parameters is None or (is_open(tool) and not parameters):
            return None
        parts: list[Constraint] = []
        for parameter in parameters:
            part = self._part_constraint(parameter)
            if part is None:
                return None
            parts.append(part if parameter.is_required else optional(part))
        head = f'{self.mark}<invoke name="{tool.name}">'
        return concat(head, *parts, f"{self.mark}</invoke>")

    def _part_constraint(self, parameter: Parameter) -> Constraint | None:
        end = f"{self.mark}</{parameter.name}>"
        value: Constraint | None = None
        if is_text(parameter.schema):
            value = text_constraint(parameter.schema, end)
        elif (kinds(parameter.schema) or {""}) <= _SCALARS:
            scalar = JsonSchema({**parameter.schema, "title": parameter.name}, whitespace="")
            value = concat(scalar, end)
        if value is None or _TAG.fullmatch(f"<{parameter.name}>") is None:
            return None
        return concat(f"{self.mark}<{parameter.name}>", value)


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    """Return whether a schema allows a JSON type, as far as it says."""
    allowed = kinds(with_json_types(schema))
    return allowed is None or kind in allowed
