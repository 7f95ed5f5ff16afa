"""Tool calls of Hunyuan 3 (Hy3): a name, then keys and values in tags, in one section.

Source: the chat template of Hy3-preview. Checkpoints after it write every tag with a suffix of
their own, `<tool_calls:opensource>` say, which their vocabulary has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from dovetail.interfaces.data.text import Layout, Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.syntax.tag_suffixes import suffix_of, suffixed, variant
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

SECTION = Markers(start="<tool_calls>", end="</tool_calls>")
CALL = Markers(start="<tool_call>", end="</tool_call>", is_body=True)
"""Models also leave the section out: a special token is never prose."""
SEPARATOR = "<tool_sep>"
INNER = (
    "<tool_call>", "</tool_call>", SEPARATOR, "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>",
)  # fmt: skip


class HyV3(XmlToolParser):
    """<tool_call>name<tool_sep>, then <arg_key>k</arg_key> and <arg_value>v</arg_value>."""

    info = Info(
        summary="names with <tool_sep>, <arg_key> and <arg_value> tags (Hy3)",
        source="https://huggingface.co/tencent/Hy3-preview",
    )
    auto_rank = 2
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, CALL)
    layout: ClassVar[Layout] = (SECTION.start, SECTION.end)
    inner: ClassVar[tuple[str, ...]] = INNER
    calls: ClassVar[XmlCalls] = XmlCalls(
        head=f"<tool_call>NAME{SEPARATOR}",
        key="<arg_key>NAME</arg_key>\n<arg_value>",
        value_end="</arg_value>",
        tail="</tool_call>",
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{SECTION.start}\n<tool_call>weather{SEPARATOR}\n<arg_key>city</arg_key>\n"
            "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
            f"</tool_call>\n{SECTION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f"I look it up.{SECTION.start}<tool_call>now{SEPARATOR}</tool_call>\n<tool_call>"
            f'find{SEPARATOR}<arg_key>q</arg_key><arg_value>"x" \\ {SECTION.end} ☃\n</arg_value>'
            '<arg_key>o</arg_key><arg_value>{"a":  [1.50, "\\u00e9"]}</arg_value></tool_call>'
            f"{SECTION.end}",
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
            text=f"{SECTION.start}\n<tool_call>weather{SEPARATOR}\n<arg_key>days</arg_key>\n"
            "<arg_value>2</arg_value>\n<arg_key>city</arg_key>\n<arg_value>Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, ("<tool_sep>", "<tool_sep:"), ("<arg_key>", "<arg_key:"))

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for the tags that the vocabulary has: their suffix, if any."""
        suffix = suffix_of(tokenizer, "tool_calls")
        if not suffix:
            return self
        names = ("head", "key", "value_end", "tail")
        tags: dict[str, Any] = {name: suffixed(getattr(self.calls, name), suffix) for name in names}
        section, call = (
            replace(region, start=suffixed(region.start, suffix), end=suffixed(region.end, suffix))
            for region in self.markers
        )
        return variant(
            type(self),
            calls=replace(self.calls, **tags),
            markers=(section, call),
            layout=(section.start, section.end),
            inner=tuple(suffixed(text, suffix) for text in self.inner),
        )(self.options)
