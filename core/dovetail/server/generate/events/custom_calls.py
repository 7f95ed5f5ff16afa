"""Custom tool calls in an answer: a call's input is the only text among its arguments.

Tools are known here by name only; `custom_tools` defines how the model sees them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from dovetail.json_values import json_value
from dovetail.server.generate.events.types import Event, ToolCallArgsDelta, ToolCallStart

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|[^u])", re.DOTALL)
_HALF = re.compile(r"\\u[dD][89abAB]..", re.DOTALL)


class CustomInput:
    """Extracts the input of one call from its streamed arguments, however they are split. Arguments
    in another format are passed on as the input."""

    def __init__(self) -> None:
        self._pending = ""
        self._phase = "head"

    def feed(self, text: str) -> str:
        """Return the part of the input that is now certain. Mutates: self"""
        self._pending += text
        if self._phase == "head":
            self._read_head()
        if self._phase == "raw":
            pending, self._pending = self._pending, ""
            return pending
        return self._read_text() if self._phase == "text" else ""

    def _read_head(self) -> None:
        match = _HEAD.match(self._pending)
        if match is not None:
            self._pending, self._phase = self._pending[match.end() :], "text"
        elif not _may_be_head(self._pending):
            self._phase = "raw"

    def _read_text(self) -> str:
        found: list[str] = []
        at = 0
        while at < len(self._pending):
            char = self._pending[at]
            if char == '"':
                self._phase, self._pending = "end", ""
                return "".join(found)
            if char != "\\":
                found.append(char)
                at += 1
                continue
            match = _ESCAPE.match(self._pending, at)
            if match is None or _may_be_pair(self._pending[at:], match.group()):
                break
            found.append(_unescaped(match.group()))
            at = match.end()
        self._pending = self._pending[at:]
        return "".join(found)


def _may_be_head(text: str) -> bool:
    """Return whether the text may be the start of an object with "input" as its first member."""
    bare = "".join(text.split())
    return '{"input":"'.startswith(bare)


def _may_be_pair(text: str, escape: str) -> bool:
    """Return whether an escape may be the first half of an incomplete surrogate pair."""
    rest = text[len(escape) :]
    return bool(_HALF.fullmatch(escape)) and len(rest) < 6 and "\\u".startswith(rest[:2])


def _unescaped(escape: str) -> str:
    """Return the character of an escape. An escape unknown to JSON is returned unchanged, a lone
    surrogate as U+FFFD."""
    try:
        text = str(json_value(f'"{escape}"'))
    except ValueError:
        return escape
    return "\ufffd" if "\ud800" <= text <= "\udfff" else text


class CustomCalls:
    """Converts the arguments of these tools' calls to their input, in the events of one answer."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._inputs: dict[int, CustomInput] = {}

    def read(self, events: Iterable[Event]) -> list[Event]:
        """Return the converted events. Mutates: self"""
        return [read for event in events if (read := self._read(event)) is not None]

    def _read(self, event: Event) -> Event | None:
        if isinstance(event, ToolCallStart) and event.name in self._names:
            self._inputs[event.index] = CustomInput()
            return replace(event, is_custom=True)
        if isinstance(event, ToolCallArgsDelta) and event.index in self._inputs:
            text = self._inputs[event.index].feed(event.text)
            return replace(event, text=text, is_custom=True) if text else None
        return event
