"""Tool calls of Step3: steptml tags for the function and each parameter, in one section.

Source: the chat template of step3.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

SECTION = Markers(start="<｜tool_calls_begin｜>", end="<｜tool_calls_end｜>")
BEGIN = "<｜tool_call_begin｜>"
END = "<｜tool_call_end｜>"
SEPARATOR = "<｜tool_sep｜>"
CALL = Markers(start=BEGIN, end=END, is_body=True)
"""Models also leave the section out: a special token is never prose."""


class Step3(XmlToolParser):
    """<steptml:invoke name="..."> with <steptml:parameter name="k">v</steptml:parameter>."""

    info = Info(
        summary="<steptml:invoke> and <steptml:parameter> tags (Step3)",
        source="https://huggingface.co/stepfun-ai/step3",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, CALL)
    layout: ClassVar[Layout] = (SECTION.start, SECTION.end)
    inner: ClassVar[tuple[str, ...]] = (BEGIN, END, SEPARATOR)
    calls: ClassVar[XmlCalls] = XmlCalls(
        before=f"{BEGIN}function{SEPARATOR}",
        head='<steptml:invoke name="NAME">',
        key='<steptml:parameter name="NAME">',
        value_end="</steptml:parameter>",
        tail="</steptml:invoke>",
        after=END,
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{SECTION.start}\n{BEGIN}function{SEPARATOR}<steptml:invoke name="weather">\n'
            '<steptml:parameter name="city">Paris</steptml:parameter>\n'
            '<steptml:parameter name="days">2</steptml:parameter>\n'
            f"</steptml:invoke>{END}\n{SECTION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.{SECTION.start}<steptml:invoke name="now"></steptml:invoke>'
            f'{BEGIN}function{SEPARATOR}<steptml:invoke name="find"><steptml:parameter name="q">'
            f'"x" \\ {SECTION.end} ☃\n</steptml:parameter></steptml:invoke>{END}{SECTION.end}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "\\"x\\" \\\\ {SECTION.end} ☃\\n"}}'),
            ),
        ),
        Sample(
            text=f"{SECTION.start}none{SECTION.end} and on",
            content=f"{SECTION.start}none{SECTION.end} and on",
        ),
        Sample(
            text=f'{SECTION.start}<steptml:invoke name="weather"><steptml:parameter name="days">2'
            '</steptml:parameter><steptml:parameter name="city">Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, SECTION.start, "<steptml:")
