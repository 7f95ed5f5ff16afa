"""Calls written as JSON objects with a name and arguments: whole, half written, and their
constraint.

`JsonCalls` says which keys a family uses; a parser calls it with the text of one object, of several
in a row or of a list of them. Arguments keep the model's own bytes. What `so_far` has once said of
a beginning stays true of every longer text, also where that text goes wrong later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.constraint import Constraint, JsonSchema, concat
from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.syntax.json_text import Member, check, loads, members, skip_blanks
from dovetail.syntax.type_words import with_json_types

EMPTY = "{}"
BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects of a text. `end`: where they are over, None while more may follow; `fault`: what
    stands there instead of what should. An object that is not JSON is the last, up to and with
    the character that is wrong."""

    places: list[tuple[int, int | None]]
    end: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """The keys of a call, and what may stand between calls.

    `arguments` are alternatives, the first is the one to write. `is_name_enough`: an object without
    arguments is a call. `others` are the keys that may stand before these, None: any; syntaxes
    without a tag name them, so that an answer in JSON is soon seen to be no call. `dividers` are
    characters that may stand, with blanks, between objects in a row; None: there is one object
    only. A list of objects is always taken.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    is_name_enough: bool = True
    others: tuple[str, ...] | None = None
    dividers: str | None = None

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of a whole text.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a string.
        """
        objects = self._objects(text)
        if objects.fault or not objects.places:
            raise MalformedToolCall(objects.fault or "no object")
        calls = [self._call(text[start:end]) for start, end in objects.places]
        is_list = text.lstrip(BLANKS).startswith("[")
        over = objects.end if is_list else objects.places[-1][1]
        if over is None or text[over:].strip(BLANKS + ("" if is_list else self.dividers or "")):
            raise MalformedToolCall("the list is not closed, or text follows the calls")
        return calls

    def so_far(self, text: str) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        objects = self._objects(text)
        calls: list[ToolCall] = []
        try:
            for start, end in objects.places:
                call = self._begun(text[start:end])
                if call is None and end is not None:
                    call = self._call(text[start:end])
                if call is None:
                    break
                calls.append(call)
        except MalformedToolCall:
            if not calls:
                raise
        if objects.end is not None and not calls:
            raise MalformedToolCall(objects.fault or "no object")
        return calls

    def end(self, text: str) -> int | None:
        """Return where the calls are over, or None while more of them may follow."""
        return self._objects(text).end

    def constraint(self, tool: Tool, *, before: str = "", after: str = "") -> Constraint:
        """Return the text of one call: an object with the tool's name, arguments by its schema."""
        head = f"{before}{{{json.dumps(self.name)}: {json.dumps(tool.name)}, "
        head += f"{json.dumps(self.arguments[0])}: "
        return concat(head, JsonSchema(schema_of(tool)), "}" + after)

    def _objects(self, text: str) -> _Objects:
        at = skip_blanks(text)
        if at >= len(text):
            return _Objects([])
        if text[at] == "[":
            return _listed(text, at)
        if text[at] == "{":
            return self._in_a_row(text, at)
        return _Objects([], at, "neither an object nor a list of objects")

    def _in_a_row(self, text: str, at: int) -> _Objects:
        places: list[tuple[int, int | None]] = []
        while True:
            checked = check(text, at)
            if checked.fault is not None:
                return _broken(places, at, checked.fault)
            places.append((at, checked.end))
            if (end := checked.end) is None:
                return _Objects(places)
            if self.dividers is None:
                return _Objects(places, end)
            at = skip_blanks(text, end)
            while at < len(text) and text[at] in self.dividers:
                at = skip_blanks(text, at + 1)
            if at >= len(text):
                return _Objects(places)
            if text[at] != "{":
                return _Objects(places, end)

    def _call(self, text: str) -> ToolCall:
        loads(text)
        name, arguments = self._parts(text)
        called = loads(text[name.start : name.end]) if name else None
        if not isinstance(called, str) or not called:
            raise MalformedToolCall(f'no object with a "{self.name}"')
        if arguments is None and not self.is_name_enough:
            raise MalformedToolCall(f'no object with "{self.arguments[0]}"')
        return ToolCall(name=called, arguments=_arguments(text, arguments) if arguments else EMPTY)

    def _begun(self, text: str) -> ToolCall | None:
        """Return the call of an object that may be cut, once its name and a "{" are there."""
        name, arguments = self._parts(text)
        if name is None or name.end is None or arguments is None or text[arguments.start] != "{":
            return None
        called = loads(text[name.start : name.end])
        if not isinstance(called, str) or not called:
            return None
        return ToolCall(name=called, arguments=text[arguments.start : arguments.end])

    def _parts(self, text: str) -> tuple[Member | None, Member | None]:
        """Return the first members for the name and for the arguments, and look no further: what
        follows them must not change what was said of a beginning."""
        name: Member | None = None
        arguments: Member | None = None
        for member in members(text, 0):
            if member.key == self.name:
                name = name or member
            elif member.key in self.arguments:
                arguments = arguments or member
            elif self.others is not None and member.key not in self.others:
                raise MalformedToolCall(f'no call has a "{member.key}"')
            if name and arguments:
                break
        return name, arguments


BARE = JsonCalls(is_name_enough=False, others=("type", "id"), dividers=",;")
"""Calls that a model writes in no syntax but JSON."""


def bare_calls(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Return the calls of these tools that a text is, and nothing else.

    Raises: MalformedToolCall, UnfinishedToolCall when the text is the beginning of such.
    """
    names = {tool.name for tool in tools}
    try:
        calls, is_whole = BARE.parse(text), True
    except MalformedToolCall:
        calls, is_whole = BARE.so_far(text), False
        if _is_over(text):
            raise
    if any(call.name not in names for call in calls):
        raise MalformedToolCall("no such tool was offered")
    if not is_whole:
        raise UnfinishedToolCall("the calls are not whole")
    return calls


def _is_over(text: str) -> bool:
    """Return whether a text goes on behind its calls, or goes wrong in them."""
    end = BARE.end(text)
    return end is not None and bool(text[end:].strip(BLANKS))


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: an object, whatever the client left out, in JSON's
    types."""
    return {"type": "object", **with_json_types(tool.parameters)}


def object_at(text: str, at: int = 0) -> str:
    """Return the JSON object that begins at `at` and ends with the text.

    Raises: MalformedToolCall, UnfinishedToolCall when it ends within a string.
    """
    found = text[at:]
    if not isinstance(loads(found), dict):
        raise MalformedToolCall("the arguments are not an object")
    return found


def _arguments(text: str, member: Member) -> str:
    """Return the arguments' own text; a string that holds an object stands for that object."""
    written = text[member.start : member.end]
    value = loads(written)
    if isinstance(value, str):
        return _unquoted(value or EMPTY, member.key)
    if value is None:
        return EMPTY
    if not isinstance(value, dict):
        raise MalformedToolCall(f'"{member.key}" is not an object')
    return written


def _unquoted(text: str, key: str) -> str:
    try:
        return object_at(text)
    except MalformedToolCall as error:
        raise MalformedToolCall(f'"{key}" holds no object') from error


def _broken(places: list[tuple[int, int | None]], at: int, fault: int) -> _Objects:
    return _Objects([*places, (at, fault + 1)], fault, f"no JSON from character {fault + 1} on")


def _listed(text: str, at: int) -> _Objects:
    """Return the objects of the list that begins at `at`, as far as it goes."""
    places: list[tuple[int, int | None]] = []
    at = skip_blanks(text, at + 1)
    while at < len(text) and text[at] != "]":
        if text[at] != "{":
            return _Objects(places, at, "an item is not an object")
        checked = check(text, at)
        if checked.fault is not None:
            return _broken(places, at, checked.fault)
        places.append((at, checked.end))
        if checked.end is None:
            return _Objects(places)
        at = skip_blanks(text, checked.end)
        if at < len(text) and text[at] == ",":
            at = skip_blanks(text, at + 1)
        elif at < len(text) and text[at] != "]":
            return _Objects(places, at, "items are not divided by a comma")
    return _Objects(places, at + 1 if at < len(text) else None)
