"""Tool calls of K2 Horizon: a name with keys and values, typed or not, or a JSON object.

Source: vLLM's parser of K2 Horizon, which describes the three formats of the chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.syntax.xml_parser import XmlToolParser

CALL = Markers(start="<ifm|tool_call>", end="</ifm|tool_call>")
KEY, TYPE, VALUE = "<ifm|arg_key>", "<ifm|arg_type>", "<ifm|arg_value>"
KEY_END, TYPE_END, VALUE_END = (tag.replace("<", "</") for tag in (KEY, TYPE, VALUE))
_JSON = JsonCalls()
_PLAIN = XmlCalls(head="NAME", key=f"{KEY}NAME{KEY_END}\n{VALUE}", value_end=VALUE_END, region=CALL)
_TYPED = replace(
    _PLAIN, key=f"{KEY}NAME{KEY_END}\n{TYPE}TYPE{TYPE_END}\n{VALUE}", text_type="string"
)


class K2Horizon(XmlToolParser):
    """name, then <ifm|arg_key>k</ifm|arg_key> <ifm|arg_value>v</ifm|arg_value> for each."""

    info = Info(
        summary="<ifm|tool_call> with keys and values, or JSON objects (K2 Horizon)",
        source="https://huggingface.co/IFM/K2-Horizon-7B",
    )
    auto_rank = 2
    markers: ClassVar[tuple[Markers, ...]] = (CALL,)
    layout: ClassVar[Layout] = ("<ifm|tool_calls>", "</ifm|tool_calls>")
    inner: ClassVar[tuple[str, ...]] = (KEY, KEY_END, TYPE, TYPE_END, VALUE, VALUE_END)
    calls: ClassVar[XmlCalls] = _PLAIN
    has_one_call: ClassVar[bool] = True
    blank: ClassVar[str] = ""
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"<ifm|tool_calls>\n{CALL.start}weather\n{KEY}city{KEY_END}\n{VALUE}Paris"
            f"{VALUE_END}\n{KEY}days{KEY_END}\n{VALUE}2{VALUE_END}\n{CALL.end}\n"
            "</ifm|tool_calls>",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f"I look it up.<ifm|tool_calls>{CALL.start}now{CALL.end}{CALL.start}find\n{KEY}q"
            f"{KEY_END}{TYPE}string{TYPE_END}{VALUE}12{VALUE_END}{KEY}o{KEY_END}{TYPE}array[integer]"
            f"{TYPE_END}{VALUE}[1,  2]{VALUE_END}{CALL.end}</ifm|tool_calls>",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "12", "o": [1,  2]}'),
            ),
        ),
        Sample(
            text=f'{CALL.start}{{"name": "find", "arguments": {{"q": "{CALL.end}"}}}}{CALL.end}',
            calls=(ToolCall(name="find", arguments=f'{{"q": "{CALL.end}"}}'),),
        ),
        Sample(
            text=f"{CALL.start}not a call{CALL.end} and on",
            content=f"{CALL.start}not a call{CALL.end} and on",
        ),
        Sample(
            text=f"{CALL.start}weather\n{KEY}days{KEY_END}\n{VALUE}2{VALUE_END}\n{KEY}city{KEY_END}"
            f"\n{VALUE}Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, CALL.start)

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call in a region. Raises: MalformedToolCall"""
        return _JSON.parse(body) if _is_json(body) else _calls_of(body).parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call as far as it is written. Raises: MalformedToolCall"""
        return _JSON.so_far(body) if _is_json(body) else _calls_of(body).so_far(body, tools)

    def close(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call of a region that is over within a value. Raises: MalformedToolCall"""
        if _is_json(body):
            return super().close(body, tools)
        return _calls_of(body).parse(body, tools, is_over=True)


def _is_json(body: str) -> bool:
    return body.lstrip().startswith("{")


def _calls_of(body: str) -> XmlCalls:
    """Return the tags of a call by its first argument, which says a type or does not."""
    first = body.partition(VALUE)[0]
    return _TYPED if TYPE in first else _PLAIN
