"""Tool calls of GLM-4.5 and later: a name, then a tag for each key and each value.

Source: the chat templates of GLM-4.5 and GLM-4.6; later ones write no line ends between the tags.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

REGION = Markers(start="<tool_call>", end="</tool_call>")


class Glm45(XmlToolParser):
    """name, then <arg_key>k</arg_key> <arg_value>v</arg_value> for each argument."""

    info = Info(
        summary="a name with <arg_key> and <arg_value> tags (GLM-4.5, GLM-4.6)",
        source="https://huggingface.co/zai-org/GLM-4.5",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (REGION,)
    inner: ClassVar[tuple[str, ...]] = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    calls: ClassVar[XmlCalls] = XmlCalls(
        head="NAME",
        key="<arg_key>NAME</arg_key>\n<arg_value>",
        value_end="</arg_value>",
        region=REGION,
    )
    has_one_call: ClassVar[bool] = True
    blank: ClassVar[str] = ""
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text="<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text="I look it up.\n<tool_call>now\n</tool_call>\n<tool_call>find<arg_key>q</arg_key>"
            '<arg_value>"x" \\ </tool_call> ☃\n</arg_value><arg_key>o</arg_key>'
            '<arg_value>{"a":  [1.50, "\\u00e9"]}</arg_value></tool_call>',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments='{"q": "\\"x\\" \\\\ </tool_call> ☃\\n", '
                    '"o": {"a":  [1.50, "\\u00e9"]}}',
                ),
            ),
        ),
        Sample(
            text="<tool_call>not a call</tool_call> and on",
            content="<tool_call>not a call</tool_call> and on",
        ),
        Sample(
            text="<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
            "<arg_key>city</arg_key>\n<arg_value>Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<tool_call>", "<arg_key>")
