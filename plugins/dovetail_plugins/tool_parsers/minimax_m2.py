"""Tool calls of MiniMax-M2: invoke tags with a tag for each parameter, in one section.

Source: the chat template and the tool-calling guide of MiniMax-M2.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

SECTION = Markers(start="<minimax:tool_call>", end="</minimax:tool_call>")


def samples_of(section: Markers) -> tuple[Sample, ...]:
    """Return samples whose calls are in this section."""
    return (
        Sample(
            text=f'{section.start}\n<invoke name="weather">\n<parameter name="city">Paris'
            f'</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n{section.end}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.\n{section.start}<invoke name="now"></invoke>'
            f'<invoke name="find"><parameter name="q">"x" \\ {section.end} ☃\n</parameter>'
            f'<parameter name="o">{{"a":  [1.50, "\\u00e9"]}}</parameter></invoke>{section.end}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ {section.end} ☃\\n", '
                    '"o": {"a":  [1.50, "\\u00e9"]}}',
                ),
            ),
        ),
        Sample(
            text=f"{section.start}none{section.end} and on",
            content=f"{section.start}none{section.end} and on",
        ),
        Sample(
            text=f'{section.start}\n<invoke name="weather">\n<parameter name="days">2</parameter>\n'
            '<parameter name="city">Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )


class MinimaxM2(XmlToolParser):
    """<invoke name="..."> with <parameter name="k">v</parameter> for each argument."""

    info = Info(
        summary="<invoke> and <parameter> tags in <minimax:tool_call> (MiniMax-M2)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M2",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION,)
    inner: ClassVar[tuple[str, ...]] = ("<invoke", "</invoke>", "<parameter", "</parameter>")
    calls: ClassVar[XmlCalls] = XmlCalls(
        head='<invoke name="NAME">',
        key='<parameter name="NAME">',
        value_end="</parameter>",
        tail="</invoke>",
    )
    samples: ClassVar[tuple[Sample, ...]] = samples_of(SECTION)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, SECTION.start)
