"""Tool calls of Seed-OSS: a function tag with a tag for each parameter.

Source: the chat template of Seed-OSS-36B-Instruct.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

SECTION = Markers(start="<seed:tool_call>", end="</seed:tool_call>")


class SeedOss(XmlToolParser):
    """<function=name>, then <parameter=k>v</parameter> for each argument."""

    info = Info(
        summary="<function=NAME> with <parameter=K> tags in <seed:tool_call> (Seed-OSS)",
        source="https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION,)
    inner: ClassVar[tuple[str, ...]] = ("<function=", "</function>", "<parameter=", "</parameter>")
    calls: ClassVar[XmlCalls] = XmlCalls(
        head="<function=NAME>",
        key="<parameter=NAME>",
        value_end="</parameter>",
        tail="</function>",
        region=SECTION,
    )
    has_one_call: ClassVar[bool] = True
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{SECTION.start}\n<function=weather>\n<parameter=city>Paris</parameter>\n"
            f"<parameter=days>2</parameter>\n</function>\n{SECTION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f"I look it up.\n{SECTION.start}<function=now></function>{SECTION.end}"
            f'{SECTION.start}\n<function=find><parameter=q>"x" \\ {SECTION.end} ☃\n</parameter>'
            f'<parameter=o>{{"a":  [1.50, "\\u00e9"]}}</parameter></function>{SECTION.end}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ {SECTION.end} ☃\\n", '
                    '"o": {"a":  [1.50, "\\u00e9"]}}',
                ),
            ),
        ),
        Sample(
            text=f"{SECTION.start}none{SECTION.end} and on",
            content=f"{SECTION.start}none{SECTION.end} and on",
        ),
        Sample(
            text=f"{SECTION.start}\n<function=weather>\n<parameter=days>2</parameter>\n"
            "<parameter=city>Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, SECTION.start)
