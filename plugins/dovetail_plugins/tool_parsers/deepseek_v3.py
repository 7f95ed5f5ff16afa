"""Tool calls of DeepSeek-V3 and R1: a kind, a name and fenced JSON between tags.

Source: the chat templates of DeepSeek-V3, V3-0324, R1 and R1-0528.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat
from dovetail.interfaces.data.text import Layout, Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import schema_of
from dovetail_plugins.syntax.tagged_calls import TaggedCalls
from dovetail_plugins.syntax.tagged_parser import TaggedToolParser
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers._deepseek import (
    BEGIN,
    END,
    INNER,
    LAYOUT,
    MARKERS,
    SECTION,
    SEPARATOR,
)


class DeepseekV3(TaggedToolParser):
    """function, separator, name, then the arguments in a ```json fence."""

    info = Info(
        summary="fenced JSON arguments between tags (DeepSeek-V3, R1)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V3-0324",
    )
    markers: ClassVar[tuple[Markers, ...]] = MARKERS
    layout: ClassVar[Layout] = LAYOUT
    inner: ClassVar[tuple[str, ...]] = INNER
    calls: ClassVar[TaggedCalls] = TaggedCalls(
        begin=BEGIN,
        middle="```json",
        fence="```",
        end=END,
        head=re.compile(rf"\w*\s*{SEPARATOR}\s*(?P<name>[^\s<>]+)"),
    )
    between: ClassVar[str] = "\n"
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{SECTION.start}{BEGIN}function{SEPARATOR}weather\n```json\n"
            f'{{"city": "Paris", "days": 2}}\n```{END}{SECTION.end}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f"I look it up.\n{SECTION.start}{BEGIN}function{SEPARATOR}now\n```json\n{{}}\n"
            f"```{END}\n{BEGIN}function{SEPARATOR}find\n```json\n"
            f'{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃",\n "n": {{}}}}\n```{END}{SECTION.end}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find", arguments=f'{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃",\n "n": {{}}}}'
                ),
            ),
        ),
        Sample(
            text=f"{SECTION.start}nothing{SECTION.end} and on",
            content=f"{SECTION.start}nothing{SECTION.end} and on",
        ),
        Sample(
            text=f'{SECTION.start}{BEGIN}function{SEPARATOR}weather\n```json\n{{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, SECTION.start, SEPARATOR, "```json")

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call within a section."""
        head = f"{BEGIN}function{SEPARATOR}{tool.name}\n```json\n"
        return concat(head, JsonSchema(schema_of(tool)), f"\n```{END}")
