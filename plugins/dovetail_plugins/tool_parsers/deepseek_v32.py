"""Tool calls of DeepSeek-V3.2 and V4: DSML, invoke tags with a tag for each parameter.

Source: the encoding notes of DeepSeek-V3.2 (function_calls around the calls) and of DeepSeek-V4
(tool_calls). A parameter's tag says whether its value is a string.
"""

from __future__ import annotations

from string import ascii_letters
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample, Tag, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

DSML = "｜DSML｜"
SECTION = Markers(start=f"<{DSML}function_calls>", end=f"</{DSML}function_calls>")
INVOKE = Markers(start=f"<{DSML}invoke", end=f"</{DSML}invoke>", is_body=True)
OTHER_SECTIONS = tuple(
    Tag(start=f"<{slash}{DSML}", inside=f"{ascii_letters}_- ") for slash in ("", "/")
)
"""Tags around calls whose name the model misspelt: a special token is never prose."""
SECTION_V4 = Markers(start=f"<{DSML}tool_calls>", end=f"</{DSML}tool_calls>")


def samples_of(section: Markers) -> tuple[Sample, ...]:
    """Return samples whose calls are in this section."""
    invoke, param, end = f"<{DSML}invoke name=", f"<{DSML}parameter name=", f"</{DSML}parameter>"
    return (
        Sample(
            text=f'{section.start}\n{invoke}"weather">\n{param}"city" string="true">Paris{end}\n'
            f'{param}"days" string="false">2{end}\n</{DSML}invoke>\n{section.end}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.\n\n{section.start}{invoke}"now"></{DSML}invoke>{invoke}"find">'
            f'{param}"q" string="true">"x" \\ {section.end} ☃{end}{param}"o" string="false">'
            f'{{"a":  [1.50, "\\u00e9"]}}{end}{param}"n" string="true">12{end}</{DSML}invoke>'
            f"{section.end}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ {section.end} ☃", '
                    '"o": {"a":  [1.50, "\\u00e9"]}, "n": "12"}',
                ),
            ),
        ),
        Sample(
            text=f"{section.start}none{section.end} and on",
            content=f"{section.start}none{section.end} and on",
        ),
        Sample(
            text=f'{section.start}\n{invoke}"weather">\n{param}"days" string="false">2{end}\n'
            f'{param}"city" string="true">Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2, "city": "Pa'),),
        ),
    )


class DeepseekV32(XmlToolParser):
    """<｜DSML｜invoke name="..."> with <｜DSML｜parameter name="k" string="true">v</...>."""

    info = Info(
        summary="DSML invoke and parameter tags (DeepSeek-V3.2)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V3.2",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, INVOKE)
    layout: ClassVar[Layout] = OTHER_SECTIONS
    inner: ClassVar[tuple[str, ...]] = (DSML,)
    calls: ClassVar[XmlCalls] = XmlCalls(
        head=f'<{DSML}invoke name="NAME">',
        key=f'<{DSML}parameter name="NAME" string="TYPE">',
        value_end=f"</{DSML}parameter>",
        tail=f"</{DSML}invoke>",
        text_type="true",
        other_type="false",
        is_special=True,
    )
    samples: ClassVar[tuple[Sample, ...]] = samples_of(SECTION)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, DSML, cls.markers[0].start.removeprefix(f"<{DSML}"))


class DeepseekV4(DeepseekV32):
    """The syntax of V3.2 in a section of another name."""

    info = Info(
        summary="DSML invoke and parameter tags in tool_calls (DeepSeek-V4)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION_V4, INVOKE)
    samples: ClassVar[tuple[Sample, ...]] = samples_of(SECTION_V4)
