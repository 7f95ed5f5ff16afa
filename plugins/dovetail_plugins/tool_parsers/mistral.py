"""Tool calls of Mistral's models after [TOOL_CALLS]: a JSON list, or a name and [ARGS].

Source: the instruct formats of mistral-common: tokenizers v2 to v7 write a list, v11
NAME[CALL_ID]ID[ARGS]{...}, v13 NAME[ARGS]{...}, each after [TOOL_CALLS]. The chat templates take
only ids of nine letters and digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Choice, Constraint, JsonSchema, concat
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.json_text import check
from dovetail_plugins.syntax.json_calls import JsonCalls, object_at, schema_of
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

_HEAD = re.compile(
    r"\s*(?P<name>[^\s\[\]{}<>]{1,128})(?:\[CALL_ID\](?P<id>[A-Za-z0-9]+))?(?:\[ARGS\]\s*)?(?=\{)"
)
_PART_OF_HEAD = re.compile(r"\s*[^\s\[\]{}<>]{0,128}(?:\[[A-Z_]*(?:\][A-Za-z0-9]*)?)*\s*")


class Mistral(JsonToolParser):
    """[TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]name[ARGS]{...}."""

    info = Info(
        summary="a JSON list, or names with [ARGS], after [TOOL_CALLS] (Mistral)",
        source="https://github.com/mistralai/mistral-common",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="[TOOL_CALLS]"),)
    inner: ClassVar[tuple[str, ...]] = ("[ARGS]", "[CALL_ID]")
    calls: ClassVar[JsonCalls] = JsonCalls(ids=re.compile(r"[A-Za-z0-9]{9}"))
    id_prefix: ClassVar[str] = ""
    id_digits: ClassVar[int] = 9
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='I look it up.[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "find", '
            '"arguments": {"q": "[TOOL_CALLS] \\"x\\" \\u00e9 ☃"}, "id": "a1b2c3d4e"}]',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "[TOOL_CALLS] \\"x\\" \\u00e9 ☃"}'),
            ),
        ),
        Sample(
            text='[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]find[CALL_ID]a1b2c3d4e[ARGS]{"q": "}"}',
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "}"}', id="a1b2c3d4e"),
            ),
        ),
        Sample(text="[TOOL_CALLS] they say", content="[TOOL_CALLS] they say"),
        Sample(
            text='[TOOL_CALLS]weather[ARGS]{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "[TOOL_CALLS]")

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        head = _HEAD.match(body)
        if head is None:
            return super().parse(body, tools)
        return [_called(head, object_at(body.rstrip(), head.end()))]

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        head = _HEAD.match(body)
        if head is not None:
            return [_called(head, body[head.end() : check(body, head.end()).end])]
        if body.lstrip().startswith(("[", "{")):
            return super().so_far(body, tools)
        if not _PART_OF_HEAD.fullmatch(body):
            raise MalformedToolCall("neither a list nor a name")
        return []

    def region_end(self, body: str) -> int | None:
        """Return where the list, or the arguments, end."""
        if (head := _HEAD.match(body)) is not None:
            return check(body, head.end()).over
        return super().region_end(body) if body.lstrip().startswith(("[", "{")) else None

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call: with [ARGS], or as a list."""
        named = concat(f"[TOOL_CALLS]{tool.name}[ARGS]", JsonSchema(schema_of(tool)))
        return Choice((named, self.calls.constraint(tool, before="[TOOL_CALLS][", after="]")))


def _called(head: re.Match[str], arguments: str) -> ToolCall:
    return ToolCall(name=head["name"], arguments=arguments, id=head["id"] or "")
