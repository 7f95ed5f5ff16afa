"""Tool calls of Kimi K2: an id that holds the name, then JSON, between tags.

Source: the tool-call guide in the model card of Kimi-K2-Instruct. Its chat template wants the
model's own ids ("functions.NAME:0") back with the results, so they are the calls' ids.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    JsonSchema,
    Literal,
    Repeat,
    concat,
)
from dovetail.interfaces.data.text import Layout, Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import schema_of
from dovetail_plugins.syntax.tagged_calls import TaggedCalls
from dovetail_plugins.syntax.tagged_parser import TaggedToolParser
from dovetail_plugins.syntax.templates import unmentioned

SECTION = Markers(start="<|tool_calls_section_begin|>", end="<|tool_calls_section_end|>")
BEGIN = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
END = "<|tool_call_end|>"
SECTION_TAGS = tuple(
    f"<|tool_{word}_section_{at}|>" for word in ("calls", "call") for at in ("begin", "end")
)
"""Models also leave the section out, or write "call": a special token is never prose."""
DIGIT = Choice(tuple(Literal(digit) for digit in "0123456789"))


class KimiK2(TaggedToolParser):
    """functions.NAME:INDEX and arguments for each call, in one section."""

    info = Info(
        summary="ids with names and JSON arguments between tags (Kimi K2)",
        source="https://huggingface.co/moonshotai/Kimi-K2-Instruct",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, Markers(start=BEGIN, is_body=True))
    layout: ClassVar[Layout] = SECTION_TAGS
    inner: ClassVar[tuple[str, ...]] = (BEGIN, ARGUMENTS, END)
    calls: ClassVar[TaggedCalls] = TaggedCalls(
        begin=BEGIN,
        middle=ARGUMENTS,
        end=END,
        head=re.compile(r"(?P<id>(?:functions\.)?(?P<name>[^\s<>:]+)(?::\d+)?)"),
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{SECTION.start}{BEGIN}functions.weather:0{ARGUMENTS}{{"city": "Paris"}}{END}'
            f"{SECTION.end}",
            calls=(
                ToolCall(name="weather", arguments='{"city": "Paris"}', id="functions.weather:0"),
            ),
        ),
        Sample(
            text=f"I look it up.{SECTION.start}{BEGIN}functions.now:0{ARGUMENTS}{{}}{END}"
            f'{BEGIN}functions.my.find:1{ARGUMENTS}{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃"}}{END}'
            f"{SECTION.end}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}", id="functions.now:0"),
                ToolCall(
                    name="my.find",
                    arguments=f'{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃"}}',
                    id="functions.my.find:1",
                ),
            ),
        ),
        Sample(
            text=f"{SECTION.start}{BEGIN}weather{END}{SECTION.end} and on",
            content=f"{SECTION.start}{BEGIN}weather{END}{SECTION.end} and on",
        ),
        Sample(
            text=f'{SECTION.start}{BEGIN}functions.weather:0{ARGUMENTS}{{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa', id="functions.weather:0"),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, SECTION.start)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call within a section."""
        head = (f"{BEGIN}functions.{tool.name}:", Repeat(DIGIT, 1, 4), ARGUMENTS)
        return concat(*head, JsonSchema(schema_of(tool)), END)
