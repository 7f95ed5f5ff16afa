"""Tool calls of Apertus: a JSON list of objects whose one key is the function.

Source: the chat template of Apertus-8B-Instruct-2509.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.json_text import Member, members
from dovetail_plugins.syntax.json_calls import JsonCalls, bare_calls, schema_of
from dovetail_plugins.syntax.templates import unmentioned

START, END = "<|tools_prefix|>", "<|tools_suffix|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCalls(JsonCalls):
    """Calls whose one key is the function; `names` are the functions that were offered."""

    names: tuple[str, ...] = ()

    def first_key(self) -> str:
        """Return the pattern of the key that starts a call after a broken one."""
        names = [re.escape(json.dumps(name)) for name in self.names]
        return rf"(?:{'|'.join(names) or '(?!)'})\s*:\s*\{{"

    def parts(self, text: str) -> tuple[Any, Member | None, list[str]]:
        """Return (the first key, its member, []). Raises: MalformedToolCall"""
        member = next(members(text, 0), None)
        return (member.key if member else None), member, []


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
        return _calls_of(tools).parse(body)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        return _calls_of(tools).so_far(body)

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the JSON calls that an answer is. Raises: MalformedToolCall, UnfinishedToolCall"""
        return bare_calls(text, tools)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call: its object."""
        return concat("{" + json.dumps(tool.name) + ": ", JsonSchema(schema_of(tool)), "}")

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a region of calls."""
        return concat(f"{START}[", separated(call, ", ", most), f"]{END}")


def _calls_of(tools: Sequence[Tool]) -> KeyedCalls:
    return KeyedCalls(names=tuple(tool.name for tool in tools))
