"""Tool calls of Qwen3-Coder: a function tag with a tag for each parameter.

Source: the chat template of Qwen3-Coder-480B-A35B-Instruct. The model sometimes leaves the opening
<tool_call> out; then a call counts if its tool was offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

REGION = Markers(start="<tool_call>", end="</tool_call>")
BARE = "<function="


class Qwen3Coder(XmlToolParser):
    """<function=name>, then <parameter=k> lines </parameter> for each argument."""

    info = Info(
        summary="<function=NAME> with <parameter=K> tags (Qwen3-Coder)",
        source="https://huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (
        REGION,
        Markers(start=BARE, end="</tool_call>", is_body=True),
    )
    inner: ClassVar[tuple[str, ...]] = ("</function>", "<parameter=", "</parameter>")
    calls: ClassVar[XmlCalls] = XmlCalls(
        head="<function=NAME>",
        key="<parameter=NAME>",
        value_end="</parameter>",
        tail="</function>",
        is_wrapped=True,
        region=REGION,
    )
    has_one_call: ClassVar[bool] = True
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text="<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text="I look it up.\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
            '<tool_call>\n<function=find>\n<parameter=q>\n\n"x" \\ </tool_call>\n☃\n\n'
            '</parameter>\n<parameter=o>\n{"a":  [1.50, "\\u00e9"]}\n</parameter>\n</function>\n'
            "</tool_call>",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments='{"q": "\\n\\"x\\" \\\\ </tool_call>\\n☃\\n", '
                    '"o": {"a":  [1.50, "\\u00e9"]}}',
                ),
            ),
        ),
        Sample(
            text="<function=now>\n</function>\n</tool_call>",
            calls=(ToolCall(name="now", arguments="{}"),),
            tools=(Tool(name="now"),),
        ),
        Sample(
            text="<tool_call>not a call</tool_call> and on",
            content="<tool_call>not a call</tool_call> and on",
        ),
        Sample(
            text="<tool_call>\n<function=weather>\n<parameter=days>\n2\n</parameter>\n"
            "<parameter=city>\nPa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<tool_call>", BARE, "<parameter=")

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        calls = self.calls.parse(body, tools)
        if not _are_offered(body, calls, tools):
            raise MalformedToolCall("no <tool_call>, and no such tool")
        return calls

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        calls = self.calls.so_far(body, tools)
        if not _are_offered(body, calls, tools):
            raise MalformedToolCall("no <tool_call>, and no such tool")
        return calls


def _are_offered(body: str, calls: list[ToolCall], tools: Sequence[Tool]) -> bool:
    """Return whether the first call's tool was offered, if no <tool_call> marks it as a call."""
    return not (body.startswith(BARE) and calls) or calls[0].name in {tool.name for tool in tools}
