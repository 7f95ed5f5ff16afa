"""Tool calls of DeepSeek-V3.1: a name and JSON between tags.

Source: the chat templates of DeepSeek-V3.1, V3.1-Terminus and V3.2-Exp.
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


class DeepseekV31(TaggedToolParser):
    """name, separator, arguments."""

    info = Info(
        summary="JSON arguments between tags (DeepSeek-V3.1, V3.2-Exp)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V3.1",
    )
    markers: ClassVar[tuple[Markers, ...]] = MARKERS
    layout: ClassVar[Layout] = LAYOUT
    inner: ClassVar[tuple[str, ...]] = INNER
    calls: ClassVar[TaggedCalls] = TaggedCalls(
        begin=BEGIN, middle=SEPARATOR, end=END, head=re.compile(r"(?P<name>[^\s<>]+)")
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{SECTION.start}{BEGIN}weather{SEPARATOR}{{"city": "Paris"}}{END}{SECTION.end}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f"I look it up.{SECTION.start}{BEGIN}now{SEPARATOR}{{}}{END}"
            f'{BEGIN}find{SEPARATOR}{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃"}}{END}{SECTION.end}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(
            text=f"{SECTION.start}{BEGIN}weather{END}{SECTION.end} and on",
            content=f"{SECTION.start}{BEGIN}weather{END}{SECTION.end} and on",
        ),
        Sample(
            text=f'{SECTION.start}{BEGIN}weather{SEPARATOR}{{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        if isinstance(query, str) and "```json" in query:
            return ["the chat template fences arguments with ```json"]
        return unmentioned(query, SECTION.start, SEPARATOR)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call within a section."""
        return concat(f"{BEGIN}{tool.name}{SEPARATOR}", JsonSchema(schema_of(tool)), END)
