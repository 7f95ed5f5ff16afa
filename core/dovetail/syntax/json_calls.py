"""Calls written as JSON objects with a name and arguments: whole, half written, and their form.

`JsonCalls` says which keys a family uses; a parser calls it with the text of one object or of a
list of them. Arguments keep the model's own bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.form import Form, Json, sequence
from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.syntax.json_text import Member, loads, members, skip_blanks, value_end

EMPTY = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """The keys of a call. `arguments` are alternatives, the first is the one to write."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")

    def parse(self, text: str) -> list[ToolCall]:
        """Return the call of an object, or the calls of a list of objects.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a string.
        """
        text = text.strip()
        value = loads(text)
        if isinstance(value, dict):
            return [self._call(text)]
        if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
            raise MalformedToolCall("neither an object nor a list of objects")
        return [self._call(text[start:end]) for start, end in _items(text)]

    def so_far(self, text: str) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become neither an object nor a list.
        """
        at = skip_blanks(text)
        if at >= len(text):
            return []
        if text[at] == "[":
            places = _items(text[at:])
            return [call for a, _ in places for call in self._begun(text[at + a :])]
        return self._begun(text[at:])

    def _call(self, text: str) -> ToolCall:
        name, arguments = self._parts(text)
        called = loads(text[name.start : name.end]) if name else None
        if not isinstance(called, str) or not called:
            raise MalformedToolCall(f'no object with a "{self.name}"')
        return ToolCall(name=called, arguments=_arguments(text, arguments) if arguments else EMPTY)

    def _begun(self, text: str) -> list[ToolCall]:
        """Return the call of an object that may be cut, once its name and a "{" are there."""
        name, arguments = self._parts(text)
        if name is None or name.end is None or arguments is None or text[arguments.start] != "{":
            return []
        called = loads(text[name.start : name.end])
        if not isinstance(called, str) or not called:
            return []
        return [ToolCall(name=called, arguments=text[arguments.start : arguments.end])]

    def _parts(self, text: str) -> tuple[Member | None, Member | None]:
        """Return the first members for the name and for the arguments."""
        found = list(members(text, 0))
        name = next((m for m in found if m.key == self.name), None)
        return name, next((m for m in found if m.key in self.arguments), None)

    def form(self, tool: Tool, *, before: str = "", after: str = "") -> Form:
        """Return the text of one call: an object with the tool's name, arguments by its schema."""
        head = f"{before}{{{json.dumps(self.name)}: {json.dumps(tool.name)}, "
        head += f"{json.dumps(self.arguments[0])}: "
        return sequence(head, Json(schema_of(tool)), "}" + after)


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: an object, whatever the client left out."""
    return {"type": "object", **tool.parameters}


def _arguments(text: str, member: Member) -> str:
    """Return the arguments' own text; a string that holds an object stands for that object."""
    found = text[member.start : member.end]
    value = loads(found)
    if isinstance(value, str) and isinstance(loads(value or EMPTY), dict):
        return value or EMPTY
    if value is None:
        return EMPTY
    if not isinstance(value, dict):
        raise MalformedToolCall(f'"{member.key}" is no object')
    return found


def _items(text: str) -> list[tuple[int, int | None]]:
    """Return where the items of the list that `text` begins with stand, as far as it goes."""
    places: list[tuple[int, int | None]] = []
    at = skip_blanks(text, 1)
    while at < len(text) and text[at] != "]":
        end = value_end(text, at)
        places.append((at, end))
        if end is None:
            break
        at = skip_blanks(text, end)
        if at < len(text) and text[at] == ",":
            at = skip_blanks(text, at + 1)
        elif at < len(text) and text[at] != "]":
            raise MalformedToolCall("items are not divided by a comma")
    return places
