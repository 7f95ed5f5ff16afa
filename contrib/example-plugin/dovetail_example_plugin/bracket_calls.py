"""A tool parser: calls written as `[[name {"argument": 1}]]`. Made up for this example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces import Info
from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.json_text import loads
from dovetail_plugins.syntax.json_calls import schema_of


class BracketCalls(ToolParser):
    """A name, a blank and a JSON object between double brackets."""

    interface_version = 2
    info = Info(summary="calls in double brackets (an example)")
    capabilities = frozenset({"parallel_calls", "constrains_calls"})
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="[[", end="]]"),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='[[add {"a": 1}]]\n[[say {"text": "two ]] brackets"}]]',
            calls=(
                ToolCall(name="add", arguments='{"a": 1}'),
                ToolCall(name="say", arguments='{"text": "two ]] brackets"}'),
            ),
        ),
        Sample(text="a [[1]] footnote", content="a [[1]] footnote"),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax: none ever does."""
        return [] if query is None else ["no chat template asks for this syntax"]

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the one call in a region. Raises: MalformedToolCall"""
        name, _, arguments = body.strip().partition(" ")
        if not name.isidentifier() or not isinstance(loads(arguments or "null"), dict):
            raise MalformedToolCall("no name with a JSON object")
        return [ToolCall(name=name, arguments=arguments)]

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call."""
        return concat(f"[[{tool.name} ", JsonSchema(schema_of(tool)), "]]")
