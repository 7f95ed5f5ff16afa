"""Tool calls of Llama 3.1 to 4 in JSON: the answer begins with an object, or with <|python_tag|>.

Source: Meta's prompt-format pages for Llama 3.1, 3.2 and 4. Several objects follow each other,
divided by ";" or blanks. An object without "parameters" is an answer in JSON, not a call.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

PYTHON = Markers(start="<|python_tag|>")
BRACE = Markers(start="{", opens_answer=True, is_body=True)
SAMPLES = (
    Sample(
        text='{"name": "weather", "parameters": {"city": "Paris"}}',
        calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
    ),
    Sample(
        text='Sure. <|python_tag|>{"type": "function", "name": "now", "parameters": {}}; '
        '{"name": "find", "arguments": {"q": "; {\\"x\\"} \\u00e9 ☃"}} and on',
        content="Sure. and on",
        calls=(
            ToolCall(name="now", arguments="{}"),
            ToolCall(name="find", arguments='{"q": "; {\\"x\\"} \\u00e9 ☃"}'),
        ),
    ),
    Sample(text="<|python_tag|>they say", content="<|python_tag|>they say"),
    Sample(text='{"name": "Ann", "age": 3}', content='{"name": "Ann", "age": 3}'),
    Sample(
        text='So: {"name": "f", "parameters": {}}', content='So: {"name": "f", "parameters": {}}'
    ),
    Sample(
        text='{"name": "weather", "parameters": {"city": "Pa',
        calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
    ),
)


class Llama3Json(JsonToolParser):
    """{"name": ..., "parameters": {...}}; {...}"""

    info = Info(
        summary="JSON objects that begin the answer (Llama 3.1 to 3.3)",
        source="https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/",
    )
    auto_name: ClassVar[str] = "llama3_json"
    markers: ClassVar[tuple[Markers, ...]] = (BRACE, PYTHON)
    calls: ClassVar[JsonCalls] = JsonCalls(
        arguments=("parameters", "arguments"),
        is_name_enough=False,
        others=("type", "id"),
        dividers=";",
    )
    samples: ClassVar[tuple[Sample, ...]] = SAMPLES
    header: ClassVar[str] = "<|start_header_id|>"

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, cls.header, '"parameters"')

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of one to `most` calls."""
        return separated(call, "; ", most)


class Llama4Json(Llama3Json):
    """Llama 4's JSON calls, also between <|python_start|> and <|python_end|>."""

    info = Info(
        summary="JSON objects that begin the answer (Llama 4)",
        source="https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/",
    )
    auto_name: ClassVar[str] = "llama4_json"
    markers: ClassVar[tuple[Markers, ...]] = (
        BRACE,
        PYTHON,
        Markers(start="<|python_start|>", end="<|python_end|>"),
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        *SAMPLES,
        Sample(
            text='<|python_start|>{"name": "now", "parameters": {}}<|python_end|>',
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
    )
    header: ClassVar[str] = "<|header_start|>"
