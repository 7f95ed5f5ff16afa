"""Tool calls of Solar Open: an id, a name and JSON between tags, in one section.

Source: the chat template of Solar-Open-100B. An id that the model writes is the call's.
"""

from __future__ import annotations

import re
from string import ascii_lowercase, digits
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
from dovetail_plugins.tool_parsers import _solar_open

SECTION = Markers(start="<|tool_calls|>", end="<|calls|>")
BEGIN, END = "<|tool_call:begin|>", "<|tool_call:end|>"
NAME, ARGUMENTS = "<|tool_call:name|>", "<|tool_call:args|>"
LETTER = Choice(tuple(Literal(letter) for letter in ascii_lowercase + digits))


class SolarOpen(TaggedToolParser):
    """ID, name and arguments for each call, in one section."""

    info = Info(
        summary="ids, names and JSON arguments between tags (Solar Open)",
        source="https://huggingface.co/upstage/Solar-Open-100B",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, Markers(start=BEGIN, is_body=True))
    layout: ClassVar[Layout] = (*_solar_open.LAYOUT, SECTION.start, SECTION.end)
    inner: ClassVar[tuple[str, ...]] = (BEGIN, NAME, ARGUMENTS, END)
    calls: ClassVar[TaggedCalls] = TaggedCalls(
        begin=BEGIN,
        middle=ARGUMENTS,
        end=END,
        head=re.compile(rf"(?P<id>[\w.:-]{{0,64}})\s*{re.escape(NAME)}\s*(?P<name>[^\s<>]+)"),
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{SECTION.start}{BEGIN}a1b2c3d4e5{NAME}weather{ARGUMENTS}{{"city": "Paris"}}{END}'
            f"{SECTION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}', id="a1b2c3d4e5"),),
        ),
        Sample(
            text=f"<|content|>I look it up.<|end|><|begin|>assistant{SECTION.start}{BEGIN}0{NAME}"
            f'now{ARGUMENTS}{{}}{END}{BEGIN}1{NAME}my.find{ARGUMENTS}{{"q": "\\"{SECTION.end}\\" '
            f'\\u00e9 ☃"}}{END}{SECTION.end}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="my.find", arguments=f'{{"q": "\\"{SECTION.end}\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(
            text=f"{SECTION.start}{BEGIN}weather{END}{SECTION.end} and on",
            content=f"{SECTION.start}{BEGIN}weather{END}{SECTION.end} and on",
        ),
        Sample(
            text=f'{SECTION.start}{BEGIN}0{NAME}weather{ARGUMENTS}{{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, BEGIN, NAME)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call within a section."""
        head = (BEGIN, Repeat(LETTER, 10, 10), f"{NAME}{tool.name}{ARGUMENTS}")
        return concat(*head, JsonSchema(schema_of(tool)), END)
