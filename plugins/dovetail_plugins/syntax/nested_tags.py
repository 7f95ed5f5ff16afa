"""Arguments written as nested tags: a tag per key, each after a mark.

`{mark}<key>value{mark}</key>`: a value with tags in it is an object, or a list if they are items.
Arguments become JSON one by one; what is reported for a prefix stays true for every longer text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat, optional
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.json_text import quoted
from dovetail_plugins.syntax.parameters import (
    Parameter,
    as_json,
    is_open,
    parameters_of,
    schema_of_parameter,
)
from dovetail_plugins.syntax.plain_text import text_constraint
from dovetail_plugins.syntax.schemas import inner_schema, is_text, item_schema, kinds
from dovetail_plugins.syntax.type_words import with_json_types

ITEM = "item"
INVOKE_END = "</invoke>"
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

    def json_text(self) -> str:
        """Return the value as JSON text. Raises: MalformedToolCall"""
        if not self.parts:
            return as_json(self.text, with_json_types(self.schema))
        if self.text.strip():
            raise MalformedToolCall("text stands beside tags")
        if all(name == ITEM for name, _ in self.parts) and _may_be(self.schema, "array"):
            return f"[{', '.join(value for _, value in self.parts)}]"
        first = dict(reversed(self.parts))
        names = dict.fromkeys(name for name, _ in self.parts)
        return "{" + ", ".join(f"{quoted(name)}: {first[name]}" for name in names) + "}"

    def inner_schema(self, name: str) -> Mapping[str, Any]:
        """Return the schema of a tag within."""
        schema = with_json_types(self.schema)
        is_item = name == ITEM and _may_be(schema, "array")
        return (item_schema(schema) if is_item else {}) or inner_schema(schema, name)


@dataclass(slots=True)
class _Read:
    """The calls read from a text: the finished ones, and the open one, which begins at `begin`.
    `broken`: where text that is no call begins, until its end is known. `is_none`: the text holds
    no calls at all. `is_amid`: it ends within an argument."""

    text: str
    calls: list[ToolCall] = field(default_factory=list)
    name: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    begin: int = 0
    broken: int | None = None
    is_none: bool = False
    is_amid: bool = False
    fault: str = ""

    def to_call(self, end: str, text: str = "") -> ToolCall:
        """Return the open call, its arguments with this end."""
        inside = ", ".join(f"{quoted(key)}: {value}" for key, value in self.parts.items())
        return ToolCall(name=self.name, arguments="{" + inside + end, text=text)

    def open(self, name: str, at: int) -> None:
        """Begin a call at this place."""
        self.name, self.parts, self.begin = name, {}, at

    def close(self) -> None:
        """Make the open call."""
        self.calls.append(self.to_call("}"))
        self.name = ""

    def leave(self, at: int) -> None:
        """End the broken text at this position."""
        text = self.text[self.broken : at]
        none = ToolCall(name="", arguments="", text=text)
        self.calls.append(self.to_call("", text) if self.name else none)
        self.name, self.broken = "", None


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedTags:
    """Calls are `{mark}<invoke name="...">` ... `{mark}</invoke>`."""

    mark: str

    def parse(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of a whole text, which closes the last one. Raises: MalformedToolCall"""
        read = self._run(text, tools, is_whole=True)
        if read.broken is not None:
            read.leave(len(text))
        elif read.name and not read.is_amid:
            read.close()
        is_some = any(call.name and not call.text for call in read.calls)
        if read.name or not is_some:
            raise MalformedToolCall(read.fault or "no call, or one that is cut")
        return read.calls

    def so_far(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        read = self._run(text, tools, is_whole=False)
        if read.is_none:
            raise MalformedToolCall(read.fault)
        return [*read.calls, read.to_call("")] if read.name else read.calls

    def _run(self, text: str, tools: Sequence[Tool], *, is_whole: bool) -> _Read:
        """Read tag after tag; a broken call ends at its closing tag, or at the next call."""
        read, by_name = _Read(text), {tool.name: tool for tool in tools}
        open_ones: list[_Node] = []
        for at, tag, behind in self._pieces(text, is_whole):
            over = at + len(self.mark) + len(tag or "")
            if self._passes_broken(at, tag, over, read, open_ones):
                if read.broken is None and behind.strip():
                    read.broken = over
                continue
            try:
                self._take(tag, at, by_name, read, open_ones)
                at = over
                _add_text(behind, open_ones)
            except MalformedToolCall as error:
                read.fault = str(error)
                read.is_none = not at and not text.startswith(self.mark)
                read.broken = read.begin if read.name else at
                open_ones.clear()
            if read.is_none:
                break
        read.is_amid = bool(open_ones)
        return read

    def _passes_broken(
        self, at: int, tag: str | None, over: int, read: _Read, open_ones: list[_Node]
    ) -> bool:
        """Return whether a tag belongs to broken text; leave that text at its end (after its
        closing tag, or at the next call). Mutates: read, open_ones"""
        if tag is not None and _INVOKE.match(tag) is not None:
            if open_ones or (read.name and not read.parts and read.broken is None):
                read.broken = read.begin
                open_ones.clear()
            if read.broken is not None:
                read.leave(at)
            return False
        if read.broken is None:
            return False
        if tag == INVOKE_END:
            read.leave(over)
        return True

    def _pieces(self, text: str, is_whole: bool) -> Iterator[tuple[int, str | None, str]]:
        """Yield (position of a mark, the tag after it or None, the text after that); the last tag
        only if it is whole."""
        first, *pieces = text.split(self.mark)
        if first.strip() and not (self.mark.startswith(first.strip()) and not is_whole):
            yield 0, None, ""
        at = len(first)
        for number, piece in enumerate(pieces):
            tag = _INVOKE.match(piece) or _TAG.match(piece)
            is_growing = number == len(pieces) - 1 and not is_whole
            if tag is None and is_growing and ">" not in piece:
                return
            behind = piece[tag.end() :] if tag else ""
            is_blank = is_growing and not behind.strip()
            yield at, tag[0] if tag else None, "" if is_blank else behind
            at += len(self.mark) + len(piece)

    def _take(
        self,
        tag: str | None,
        at: int,
        by_name: Mapping[str, Tool],
        read: _Read,
        open_ones: list[_Node],
    ) -> None:
        """Open or close a tag's element. Mutates: read, open_ones. Raises: MalformedToolCall"""
        if tag is None:
            raise MalformedToolCall("text stands before the first tag, or a mark before no tag")
        invoke, plain = _INVOKE.match(tag), _TAG.match(tag)
        if invoke is not None:
            if read.name:
                read.close()
            read.open(invoke[1], at)
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
            read.close()
        else:
            raise MalformedToolCall(f"</{plain[2]}> closes nothing")

    def _close(self, name: str, read: _Read, open_ones: list[_Node]) -> None:
        node = open_ones.pop()
        if node.name != name:
            raise MalformedToolCall(f"</{name}> stands for </{node.name}>")
        if open_ones:
            open_ones[-1].parts.append((name, node.json_text()))
        else:
            read.parts.setdefault(name, node.json_text())

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call, or None if its schema is open or needs more than plain
        values: the name in a tag must be repeated at its end."""
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


def _add_text(text: str, open_ones: list[_Node]) -> None:
    """Add the text after a tag to the open tag. Mutates: open_ones"""
    if open_ones:
        open_ones[-1].text += text
    elif text.strip():
        raise MalformedToolCall("text stands between tags")


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    """Return whether a schema allows a JSON type, as far as it says."""
    allowed = kinds(with_json_types(schema))
    return allowed is None or kind in allowed
