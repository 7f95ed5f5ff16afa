"""Calls written as JSON objects with a name and arguments: parsing, partial parsing, constraints.

`JsonCalls` has the keys of a family; a parser calls it with the text of one object, of several in a
row or of a list of them. Arguments keep the model's own bytes. What `so_far` returns for a prefix
stays true for every longer text, even if that text goes wrong later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.interfaces.answer_reader import HELD_ARGUMENTS_CHARS
from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.json_text import Checked, Member, check, loads, members, skip_blanks
from dovetail_plugins.syntax.type_words import with_json_types

EMPTY = "{}"
_NOTHING = re.compile(r"null|\"\"|\{\s*\}?")
BLANKS = " \t\r\n"


RESYNC_CHARS = 8192
"""How many characters after broken JSON are searched for the next call."""
ABOUT = ("id", "type", "index", "call_id", "tool_call_id")
"""Members of a call that are not its arguments."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An object in a text; `end` is None if it is cut off. `fault`: where it stops being JSON; the
    item then ends at the next call, or at the fault if none is seen. `is_second`: an earlier item
    is broken."""

    start: int
    end: int | None
    fault: int | None = None
    is_second: bool = False


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects in a text. `end`: where they end, None while more may follow; `fault`: what is
    wrong there."""

    items: list[_Item]
    end: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """The keys of a call, and what may separate calls.

    `arguments` are alternatives, the first is the one to write. `is_name_enough`: an object without
    arguments is a call. `others` are keys allowed before these, None: any; syntaxes without a tag
    list them, so that a plain JSON answer is soon recognized as no call. `dividers` are characters
    allowed, with blanks, between consecutive objects; None: there is one object only. A list of
    objects is always taken. `needs_brace`: an object without its last brace is no call, even after
    empty arguments. `ids`: the pattern of a call's "id"; other ids are ignored. Text between calls
    that is no call is passed on as text.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    is_name_enough: bool = True
    others: tuple[str, ...] | None = None
    dividers: str | None = None
    needs_brace: bool = False
    ids: re.Pattern[str] | None = None

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of a whole text.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a string.
        """
        objects = self._objects(text)
        if objects.items and objects.items[-1].end is None:
            return self._unclosed(text, objects)
        calls = self._calls(text, objects)
        if not any(map(_is_call, calls)):
            raise MalformedToolCall(objects.fault or "no call")
        is_list = text.lstrip(BLANKS).startswith("[")
        over = objects.end if is_list else objects.items[-1].end
        if objects.items[-1].fault is not None:
            if not _is_call(calls[-1]):
                calls[-1] = replace(calls[-1], text=text[objects.items[-1].start :])
        elif over is None or text[over:].strip(BLANKS + ("" if is_list else self.dividers or "")):
            raise MalformedToolCall("the list is not closed, or text follows the calls")
        return calls

    def _unclosed(self, text: str, objects: _Objects) -> list[ToolCall]:
        """Return the calls of a text whose last object has empty arguments and lacks its brace.

        Raises: like `parse`.
        """
        rest = text[objects.items[-1].start :]
        call = None if self.needs_brace else self._begun(rest, is_over=True)
        is_last = call is not None and rest.rstrip(BLANKS).endswith("}")
        if call is None or not is_last or _NOTHING.fullmatch(call.arguments) is None:
            loads(rest)
            raise MalformedToolCall("the last object is cut")
        return [*self._calls(text, objects)[: len(objects.items) - 1], call]

    def so_far(self, text: str) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        objects = self._objects(text)
        calls = self._calls(text, objects)
        if objects.items and objects.items[-1].fault is not None and calls[-1:]:
            calls = calls if calls[-1].name else calls[:-1]
        if objects.end is not None and not any(call.name for call in calls):
            raise MalformedToolCall(objects.fault or "no object")
        return calls

    def _calls(self, text: str, objects: _Objects) -> list[ToolCall]:
        """Return the call for each object, as far as it is known.

        Raises: MalformedToolCall if the only one, or the first of an answer, is no call.
        """
        calls: list[ToolCall] = []
        for item in objects.items:
            try:
                call = self._item(text, item)
            except MalformedToolCall:
                is_only = len(objects.items) == 1 and objects.end is not None
                if not calls and (is_only or self.others is not None):
                    raise
                call = ToolCall(name="", arguments="", text=text[item.start : item.end])
            if call is None:
                break
            calls.append(call)
        return calls

    def _item(self, text: str, item: _Item) -> ToolCall | None:
        """Return the call that an object represents, None if too little of it is written.

        Raises: MalformedToolCall
        """
        end = item.end if item.fault is None else item.fault + 1
        call = self._begun(text[item.start : end], is_over=item.fault is not None)
        if item.fault is not None:
            broken = call or ToolCall(name="", arguments="")
            is_whole = check(broken.arguments).end is not None
            return broken if is_whole else replace(broken, text=text[item.start : item.end])
        if call is None and item.end is not None:
            call = self._call(text[item.start : item.end], is_second=item.is_second)
        return call if call is None or self.ids is None else self._named(text, item, call)

    def _named(self, text: str, item: _Item, call: ToolCall) -> ToolCall:
        """Return a call with the id that the model gave it. An id after long arguments, which do
        not wait for it, is ignored."""
        is_short = len(call.arguments) < HELD_ARGUMENTS_CHARS
        for member in members(text[: item.end], item.start):
            if member.key == "id" and member.end is not None:
                call_id = loads(text[member.start : member.end])
                if isinstance(call_id, str) and self.ids and self.ids.fullmatch(call_id):
                    return replace(call, id=call_id)
            if member.key in self.arguments and not is_short:
                break
        return replace(call, may_be_named=is_short and item.end is None)

    def end(self, text: str) -> int | None:
        """Return where the calls end, or None while more may follow."""
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
            return self._listed(text, at)
        if text[at] == "{":
            return self._in_a_row(text, at)
        return _Objects([], at, "neither an object nor a list of objects")

    def _in_a_row(self, text: str, at: int) -> _Objects:
        items: list[_Item] = []
        while True:
            item = self._take(text, at, items)
            if item.end is None or self.dividers is None:
                return _over(items, item.end)
            if item.fault is not None and not text.startswith("{", item.end):
                return _over(items, self._broken_end(text, item))
            at = skip_blanks(text, item.end)
            while at < len(text) and text[at] in self.dividers:
                at = skip_blanks(text, at + 1)
            if at >= len(text):
                return _Objects(items)
            if text[at] != "{":
                return _Objects(items, item.end)

    def _listed(self, text: str, at: int) -> _Objects:
        """Return the objects of the list that begins at `at`, as far as it goes."""
        items: list[_Item] = []
        at = skip_blanks(text, at + 1)
        while at < len(text) and text[at] != "]":
            if text[at] != "{" and not items:
                return _Objects(items, at, "an item is not an object")
            item = self._take(text, at, items)
            if item.end is None:
                return _Objects(items)
            if item.fault is not None and not text.startswith("{", item.end):
                return _over(items, self._broken_end(text, item))
            at = skip_blanks(text, item.end)
            if at < len(text) and text[at] == ",":
                at = skip_blanks(text, at + 1)
        return _Objects(items, at + 1 if at < len(text) else None)

    def _take(self, text: str, at: int, items: list[_Item]) -> _Item:
        """Read the object that begins at `at`, or whatever is there instead. Mutates: items"""
        is_second = bool(items) and (items[-1].is_second or items[-1].fault is not None)
        checked = check(text, at) if text[at] == "{" else Checked(fault=at)
        item = _Item(at, checked.end, checked.fault, is_second)
        if checked.fault is not None:
            found = self._next(text, checked.fault, is_object=text[at] == "{")
            item = replace(item, end=checked.fault + 1 if found is None else found)
        items.append(item)
        return item

    def _next(self, text: str, fault: int, *, is_object: bool) -> int | None:
        """Return where the next call begins after an object that is not JSON, or None."""
        before = r"[}\]]\s*[,;]?" if is_object else ","
        pattern = re.compile(before + rf"\s*(?=\{{\s*{self.first_key()})")
        found = pattern.search(text, fault, fault + RESYNC_CHARS)
        return found.end() if found else None

    def first_key(self) -> str:
        """Return the pattern of the key with which an object that is a call may begin."""
        keys = "|".join(map(re.escape, (self.name, *self.arguments, *ABOUT)))
        return rf"\"(?:{keys})\"\s*:"

    def _broken_end(self, text: str, item: _Item) -> int | None:
        """Return where the calls end when the last object is broken; None while another may follow.
        Whatever of it was not passed on is text after the calls."""
        assert item.fault is not None
        if len(text) < item.fault + RESYNC_CHARS:
            return None
        is_told = self._is_told(text[item.start : item.fault + 1])
        return item.fault if is_told or item.start == skip_blanks(text) else item.start

    def _is_told(self, text: str) -> bool:
        """Return whether anything of a broken object was passed on as a call."""
        try:
            call = self._begun(text, is_over=True)
        except MalformedToolCall:
            return False
        if call is None:
            return False
        is_whole = check(call.arguments).end is not None
        return is_whole or len(call.arguments) >= HELD_ARGUMENTS_CHARS

    def _call(self, text: str, *, is_second: bool = False) -> ToolCall:
        loads(text)
        called, arguments, others = self.parts(text)
        if not isinstance(called, str) or not called:
            raise MalformedToolCall(f'no object with a "{self.name}"')
        if arguments is None and (is_second or not self.is_name_enough):
            raise MalformedToolCall(f'no object with "{self.arguments[0]}"')
        is_said = arguments is not None and text[arguments.start] == "{"
        json_text = _arguments(text, arguments) if arguments else EMPTY
        if json_text == EMPTY and not is_said and others:
            raise MalformedToolCall(f'"{others[0]}" is left over, and there are no arguments')
        return ToolCall(name=called, arguments=json_text)

    def _begun(self, text: str, *, is_over: bool = False) -> ToolCall | None:
        """Return the call of a possibly cut object, once it has a name and non-empty arguments;
        empty ones count if no others can follow."""
        called, arguments, _ = self.parts(text)
        if arguments is None or text[arguments.start] != "{":
            return None
        is_empty = _says_nothing(text, arguments) and not is_over
        if not isinstance(called, str) or not called or is_empty:
            return None
        return ToolCall(name=called, arguments=text[arguments.start : arguments.end])

    def parts(self, text: str) -> tuple[Any, Member | None, list[str]]:
        """Return (value of the first name member, None if cut; first non-empty arguments member;
        keys of the others). Read no further: later text must not change what was reported for a
        prefix.

        Raises: MalformedToolCall
        """
        name: Member | None = None
        arguments: Member | None = None
        others: list[str] = []
        for member in members(text, 0):
            if member.key == self.name:
                name = name or member
            elif member.key in self.arguments:
                if arguments is None or _says_nothing(text, arguments):
                    arguments = member
            elif self.others is not None and member.key not in self.others:
                raise MalformedToolCall(f'no call has a "{member.key}"')
            elif member.key not in ABOUT:
                others.append(member.key)
            if name and arguments and not _says_nothing(text, arguments):
                break
        called = loads(text[name.start : name.end]) if name and name.end is not None else None
        return called, arguments, others


BARE = JsonCalls(is_name_enough=False, others=("type", "id"), dividers=",;", needs_brace=True)
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
    """Return whether a text continues after its calls, or goes wrong inside them."""
    objects = BARE._objects(text)
    is_broken = any(item.fault is not None for item in objects.items)
    return is_broken or (objects.end is not None and bool(text[objects.end :].strip(BLANKS)))


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
    """Return the arguments' own text; a string that contains an object counts as that object."""
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


def _says_nothing(text: str, arguments: Member) -> bool:
    """Return whether arguments are null, or an empty text or object."""
    written = text[arguments.start : arguments.end]
    return _NOTHING.fullmatch(written) is not None


def _is_call(call: ToolCall) -> bool:
    return bool(call.name) and not call.text


def _over(items: list[_Item], end: int | None) -> _Objects:
    """Return the objects, ended by the last one at `end`; None: the end is not known yet."""
    fault = items[-1].fault
    why = "" if fault is None else f"no JSON from character {fault + 1} on"
    return _Objects(items, end, why)
