"""Tool calls of Apertus: a JSON list of objects whose one key is the function.

Source: the chat template of Apertus-8B-Instruct-2509.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.constraint import Constraint, JsonSchema, concat, separated
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.syntax.json_calls import bare_calls, schema_of
from dovetail.syntax.json_text import check, loads, members, skip_blanks
from dovetail.syntax.templates import unmentioned

START, END = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus(ToolParser):
    """[{"name": {...}}, ...] in each region."""

    info = Info(
        summary="a JSON list of {NAME: arguments} between tool tags (Apertus)",
        source="https://huggingface.co/swiss-ai/Apertus-8B-Instruct-2509",
    )
    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}[{{"weather": {{"city": "Paris"}}}}]{END}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f'I look it up.{START}[{{"now": {{}}}}, {{"find": {{"q": "{END} \\"x\\" ☃"}}}}]'
            f"{END}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "{END} \\"x\\" ☃"}}'),
            ),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f'{START}[{{"weather": {{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, START)

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall, UnfinishedToolCall"""
        parsed = loads(body.strip())
        items = parsed if isinstance(parsed, list) else [parsed]
        if not items or not all(isinstance(i, dict) and len(i) == 1 for i in items):
            raise MalformedToolCall("no list of objects with one key")
        calls = _calls(body)
        if not all(isinstance(loads(call.arguments), dict) for call in calls):
            raise MalformedToolCall("arguments are not an object")
        return calls

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls as far as they are written. Raises: MalformedToolCall"""
        start = skip_blanks(body)
        if start < len(body) and (body[start] not in "[{" or check(body, start).fault == start + 1):
            raise MalformedToolCall("neither a list nor an object")
        return _calls(body)

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the JSON calls that an answer is. Raises: MalformedToolCall, UnfinishedToolCall"""
        return bare_calls(text, tools)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call: its object."""
        return concat("{" + json.dumps(tool.name) + ": ", JsonSchema(schema_of(tool)), "}")

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a region of calls."""
        return concat(f"{START}[", separated(call, ", ", most), f"]{END}")


def _calls(body: str) -> list[ToolCall]:
    """Return the calls of a list's objects, as far as they are JSON."""
    calls: list[ToolCall] = []
    at = skip_blanks(body)
    at = skip_blanks(body, at + 1) if body[at : at + 1] == "[" else at
    while body[at : at + 1] == "{":
        try:
            member = next(members(body, at), None)
        except MalformedToolCall:
            break
        if member is None or body[member.start] != "{" or not member.key:
            break
        end = member.end
        calls.append(ToolCall(name=member.key, arguments=body[member.start : end]))
        over = check(body, at).end
        if over is None:
            break
        at = skip_blanks(body, over)
        at = skip_blanks(body, at + 1) if body[at : at + 1] == "," else at
    return calls
