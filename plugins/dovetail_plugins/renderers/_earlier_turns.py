"""EarlierTurns: how the earlier turns of conversations were rendered, where clients do not say it.

Clients send a conversation again with every turn, and some send parts in another form: tools or the
names in their schemas in another order, the arguments of calls with other blanks. The text then has
another beginning, and the prefix cache has none of it. What means the same is rendered as before.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec

from dovetail.interfaces.renderer import Renderer, RendererInput, SpelledArguments
from dovetail.json_values import InvalidJson, json_struct, json_value

MAX_CHARS = 1 << 22
"""The characters of all tools, and of all arguments, that are stored."""

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of the folder that several API processes share, if there are several."""

Tools = Sequence[dict[str, Any]]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """The tools of the first turn that was seen of a conversation, which had `num_messages`."""

    tools: Tools
    num_messages: int


class EarlierTurns:
    """Of the conversations of one renderer, the latest. Used by several threads.

    A conversation is known by its first message of a user and by what its tools are, in whatever
    order. A turn that is not longer than the first one is rendered in its own order.
    """

    def __init__(self) -> None:
        self._offered: _Latest[_Offered] = _Latest()
        self._arguments: _Latest[str] = _Latest()

    def note_calls(self, arguments: Mapping[str, str]) -> None:
        """Store the arguments of an answer's calls, by id. Mutates: self"""
        for call_id, text in arguments.items():
            try:
                value = json_value(text)
            except InvalidJson:
                continue  # the answer was cut off, so no client sends this back as it is
            self._arguments.put(_call_key(call_id, value), text, len(text))

    def settled(self, given: RendererInput) -> RendererInput:
        """Return a conversation as its earlier turns were. Mutates: self"""
        messages = [self._with_arguments(message) for message in given.messages]
        return replace(given, messages=messages, tools=self._tools(given))

    def _tools(self, given: RendererInput) -> Tools:
        """Return the tools in the order, and with the names in the order, of the first turn."""
        if not given.tools:
            return given.tools
        texts = sorted(map(canonical, given.tools))
        users = (turn["content"] for turn in given.messages if turn["role"] == "user")
        key = canonical([next(users, None), texts])
        first, count = self._offered.get(key), len(given.messages)
        if first is not None and count > first.num_messages:
            return first.tools
        self._offered.put(key, _Offered(tools=given.tools, num_messages=count), len(key))
        return given.tools

    def _with_arguments(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        return (
            message | {"tool_calls": [self._spelled(call) for call in calls]} if calls else message
        )

    def _spelled(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call with its arguments as the model wrote them, if it wrote this call."""
        function = call["function"]
        text = self._arguments.get(_call_key(call["id"], function["arguments"]))
        if text is None:
            return call
        spelled = SpelledArguments(json_value(text), text)
        return call | {"function": function | {"arguments": spelled}}


class FollowingRenderer(Renderer):
    """A renderer that renders conversations as their earlier turns were, after `follow`."""

    _earlier: EarlierTurns | None = None

    def follow(self) -> None:
        """Begin to follow turns, unless several API processes answer: none knows all turns."""
        self._earlier = None if METRICS_FOLDER in os.environ else EarlierTurns()

    def settled(self, given: RendererInput) -> RendererInput:
        """Return a conversation as its earlier turns were rendered."""
        return given if self._earlier is None else self._earlier.settled(given)

    def note_calls(self, arguments: Mapping[str, str]) -> None:
        """Note the arguments that the model wrote in an answer's calls."""
        if self._earlier is not None:
            self._earlier.note_calls(arguments)


class _Latest(Generic[Value]):
    """The values that were used last, by key. Used by several threads."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._num_chars = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        """Return a value, None if it is unknown. Mutates: self"""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: str, value: Value, num_chars: int) -> None:
        """Store a value of a size, in place of old ones if there are too many. Mutates: self"""
        size = len(key) + num_chars
        with self._lock:
            self._num_chars += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, size
            while self._num_chars > MAX_CHARS:
                self._num_chars -= self._values.popitem(last=False)[1][1]


def _call_key(call_id: str, arguments: Any) -> str:
    """Return the name of a call, which is the same if a client writes 1.0 as 1."""
    return f"{call_id} {canonical(_with_whole_numbers(arguments))}"


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_whole_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def spelled(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the JSON text of each of a call's arguments, spelled as the model wrote it if that is
    known."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    if not isinstance(arguments, SpelledArguments):
        return texts
    try:
        written = json_struct(arguments.text, dict[str, msgspec.Raw])
    except InvalidJson:
        return texts  # Python's reader takes more, NaN for example
    return texts | {name: bytes(raw).decode() for name, raw in written.items() if name in texts}


def canonical(value: Any) -> str:
    """Return JSON that is the same for the same value, whatever the order of its names."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
