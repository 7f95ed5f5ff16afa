"""Tool calls of Kimi K3: call and argument tags of the family's own markup, in one section.

Source: the format that Kimi-K3's encoding_k3.py defines. An argument's tag says its type.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser
from dovetail_plugins.tool_parsers._kimi_k3 import CLOSE, LAYOUT, OPEN, SEP

SECTION = Markers(start=f"{OPEN}tools{SEP}", end=f"{CLOSE}tools{SEP}")
END, VALUE_END = f"{CLOSE}call{SEP}", f"{CLOSE}argument{SEP}"
CALL = Markers(start=f"{OPEN}call", end=END, is_body=True)
"""Models also leave the section out: a special token is never prose."""


def _call(name: str, index: int) -> str:
    return f'{OPEN}call tool="{name}" index="{index}"{SEP}'


def _key(name: str, kind: str) -> str:
    return f'{OPEN}argument key="{name}" type="{kind}"{SEP}'


class KimiK3(XmlToolParser):
    """call tags with an argument tag for each argument."""

    info = Info(
        summary="<|open|>call and <|open|>argument tags (Kimi K3)",
        source="https://huggingface.co/moonshotai/Kimi-K3",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, CALL)
    layout: ClassVar[Layout] = (*LAYOUT, SECTION.start, SECTION.end)
    inner: ClassVar[tuple[str, ...]] = (OPEN, SEP, CLOSE)
    calls: ClassVar[XmlCalls] = XmlCalls(
        head=f'{OPEN}call tool="NAME" index="TYPE"{SEP}',
        key=f'{OPEN}argument key="NAME" type="TYPE"{SEP}',
        value_end=VALUE_END,
        tail=END,
        gap="",
        text_type="string",
        is_special=True,
        has_entities=True,
    )
    blank: ClassVar[str] = ""
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{SECTION.start}{_call('weather', 1)}{_key('city', 'string')}Paris{VALUE_END}"
            f"{_key('days', 'number')}2{VALUE_END}{END}{SECTION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f"{OPEN}response{SEP}I look it up.{CLOSE}response{SEP}{SECTION.start}"
            f"{_call('now', 1)}{END}{_call('find', 2)}{_key('q', 'string')}"
            f'"x" \\ {SECTION.end} ☃\n{VALUE_END}{_key("o", "object")}{{"a":  [1.50]}}{VALUE_END}'
            f"{END}{SECTION.end}{CLOSE}message{SEP}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ {SECTION.end} ☃\\n", "o": {{"a":  [1.50]}}}}',
                ),
            ),
        ),
        Sample(
            text=f"{SECTION.start}none{SECTION.end} and on",
            content=f"{SECTION.start}none{SECTION.end} and on",
        ),
        Sample(
            text=f"{SECTION.start}{_call('weather', 1)}{_key('days', 'number')}2{VALUE_END}"
            f"{_key('city', 'string')}Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2, "city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, OPEN, SEP, ("open_tag('tools')", SECTION.start))
