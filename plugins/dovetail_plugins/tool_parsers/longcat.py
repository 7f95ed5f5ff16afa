"""Tool calls of LongCat-Flash: a JSON object between its own tags, or a name with argument tags.

Source: the model cards of LongCat-Flash-Chat and LongCat-Flash-Lite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls

REGION = Markers(start="<longcat_tool_call>", end="</longcat_tool_call>")
_XML = XmlCalls(
    head="NAME",
    key="<longcat_arg_key>NAME</longcat_arg_key>\n<longcat_arg_value>",
    value_end="</longcat_arg_value>",
    region=REGION,
)


class Longcat(JsonToolParser):
    """{"name": ..., "arguments": {...}}, or a name with keys and values, in each region."""

    info = Info(
        summary="JSON objects, or names with argument tags, in <longcat_tool_call> (LongCat)",
        source="https://huggingface.co/meituan-longcat/LongCat-Flash-Chat",
    )
    markers: ClassVar[tuple[Markers, ...]] = (REGION,)
    inner: ClassVar[tuple[str, ...]] = ("longcat_arg_key>", "longcat_arg_value>")
    calls: ClassVar[JsonCalls] = JsonCalls()
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{REGION.start}\n{{"name": "weather", "arguments": {{"city": "Paris"}}}}\n'
            f"{REGION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f'I look it up.\n{REGION.start}{{"name": "now", "arguments": {{}}}}{REGION.end}\n'
            f'{REGION.start}{{"name": "find", "arguments": {{"q": "{REGION.end} \\"x\\" ☃"}}}}'
            f"{REGION.end}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "{REGION.end} \\"x\\" ☃"}}'),
            ),
        ),
        Sample(
            text=f"{REGION.start}\nfind\n<longcat_arg_key>q</longcat_arg_key>\n<longcat_arg_value>"
            f"a {REGION.end}</longcat_arg_value>\n{REGION.end}",
            calls=(ToolCall(name="find", arguments=f'{{"q": "a {REGION.end}"}}'),),
        ),
        Sample(
            text=f"{REGION.start}not a call{REGION.end} and on",
            content=f"{REGION.start}not a call{REGION.end} and on",
        ),
        Sample(
            text=f'{REGION.start}{{"name": "weather", "arguments": {{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, REGION.start)

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call in a region. Raises: MalformedToolCall"""
        return super().parse(body, tools) if _is_json(body) else _XML.parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call written so far. Raises: MalformedToolCall"""
        return super().so_far(body, tools) if _is_json(body) else _XML.so_far(body, tools)

    def close(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call of a region that is over within a value. Raises: MalformedToolCall"""
        if _is_json(body):
            return super().close(body, tools)
        return _XML.parse(body, tools, is_over=True)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call."""
        return self.calls.constraint(tool, before=f"{REGION.start}\n", after=f"\n{REGION.end}")


def _is_json(body: str) -> bool:
    return body.lstrip()[:1] in ("{", "[")
