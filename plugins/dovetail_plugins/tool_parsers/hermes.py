"""Tool calls as one JSON object between <tool_call> tags.

Source: the chat templates of Hermes 2 Pro and Qwen 2.5/3. Knows no streaming and no HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall

_DECODER = json.JSONDecoder()


class Hermes(ToolParser):
    """{"name": ..., "arguments": {...}} in each region; arguments keep the model's own bytes."""

    info = Info(
        summary="JSON objects between <tool_call> tags (Hermes, Qwen)",
        source="https://github.com/NousResearch/Hermes-Function-Calling",
    )
    capabilities = frozenset({"parallel_calls"})
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="<tool_call>", end="</tool_call>"),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
            calls=(ToolCall(name="add", arguments='{"a": 1, "b": 2}'),),
        ),
        Sample(
            text='Let me see.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n'
            '<tool_call>{"arguments": {"q": "caf\\u00e9 \\"}</tool_call>\\""}, "name": "find"}'
            "</tool_call>",
            content="Let me see.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "caf\\u00e9 \\"}</tool_call>\\""}'),
            ),
        ),
        Sample(
            text="<tool_call>not a call</tool_call> and on",
            content="<tool_call>not a call</tool_call> and on",
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        if not isinstance(query, str) or all(m.start in query for m in cls.markers):
            return []
        return ["the chat template does not mention <tool_call>"]

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the one call in a region. Raises: MalformedToolCall"""
        text = body.strip()
        try:
            call = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated string")
            raise (UnfinishedToolCall if is_cut else MalformedToolCall)(error.msg) from error
        except RecursionError as error:
            raise MalformedToolCall("nested too deep") from error
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            raise MalformedToolCall('no object with a "name"')
        if not isinstance(call.get("arguments", {}), dict):
            raise MalformedToolCall('"arguments" is no object')
        return [ToolCall(name=call["name"], arguments=_member(text, "arguments") or "{}")]


def _refuse_constant(name: str) -> Any:
    raise MalformedToolCall(f"{name} is not JSON")


def _member(text: str, key: str) -> str | None:
    """Return the source text of a member's value in a valid JSON object; the last one counts."""
    found: str | None = None
    at = _skip_blank(text, 1)
    while text[at] == '"':
        name, at = _DECODER.raw_decode(text, at)
        start = _skip_blank(text, _skip_blank(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        if name == key:
            found = text[start:at]
        at = _skip_blank(text, at)
        if text[at] == ",":
            at = _skip_blank(text, at + 1)
    return found


def _skip_blank(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
