"""Tool calls of MiniCPM5: a function tag with a tag for each parameter, and no tag around them.

Source: the notes on tool calling of MiniCPM5 (openbmb/MiniCPM5-1B). A value of several lines may be
wrapped in CDATA.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

START, END = '<function name="', "</function>"


class MiniCpm5(XmlToolParser):
    """<function name="..."> with <param name="k">v</param> for each argument."""

    info = Info(
        summary="<function> and <param> tags (MiniCPM5)",
        source="https://huggingface.co/openbmb/MiniCPM5-1B",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END, is_body=True),)
    inner: ClassVar[tuple[str, ...]] = ("<param", "</param>", "<function")
    calls: ClassVar[XmlCalls] = XmlCalls(
        head='<function name="NAME">',
        key='<param name="NAME">',
        value_end="</param>",
        gap="",
        region=Markers(start="", end=END),
        wrapper=("<![CDATA[", "]]>"),
    )
    has_one_call: ClassVar[bool] = True
    blank: ClassVar[str] = "\n"
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<function name="weather"><param name="city">Paris</param><param name="days">2'
            "</param></function>",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text='I look it up.\n<function name="now"></function>\n<function name="find">\n  '
            f'<param name="q">"x" \\ {END} ☃</param>\n  <param name="o">{{"a":  [1.50, "\\u00e9"]}}'
            '</param>\n  <param name="p"><![CDATA[a </param>\nb]]></param>\n</function>',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ {END} ☃", "o": {{"a":  [1.50, "\\u00e9"]}}, '
                    '"p": "a </param>\\nb"}',
                ),
            ),
        ),
        Sample(text=f'{START}of it"{END} and on', content=f'{START}of it"{END} and on'),
        Sample(
            text='<function name="weather"><param name="days">2</param><param name="city">Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<function name=", "<param name=")

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call."""
        return self.calls.constraint(tool, end=END)
