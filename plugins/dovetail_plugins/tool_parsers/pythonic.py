"""Tool calls as a list of Python calls that begins the answer: Llama 3.2, Llama 4 and others.

Source: Meta's prompt-format pages for Llama 3.2 and 4. Values are literals; a call that computes
something is content.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.python_parser import PythonToolParser
from dovetail_plugins.syntax.templates import unmentioned

SAMPLES = (
    Sample(
        text='[weather(city="Paris", days=2)]',
        calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
    ),
    Sample(
        text="[now(), find(q='it\\'s \"x\" )] \\u00e9 ☃', o={'a': [1.50, (True, None)]})] and on",
        content="and on",
        calls=(
            ToolCall(name="now", arguments="{}"),
            ToolCall(
                name="find",
                arguments='{"q": "it\'s \\"x\\" )] é ☃", "o": {"a": [1.50, [true, null]]}}',
            ),
        ),
    ),
    Sample(text="[1] and [2] are notes", content="[1] and [2] are notes"),
    Sample(text="[docs](http://x.y/z) say", content="[docs](http://x.y/z) say"),
    Sample(text="So: [now()]", content="So: [now()]"),
    Sample(
        text='[weather(days=2, city="Pa',
        calls=(ToolCall(name="weather", arguments='{"days": 2'),),
    ),
)


class Pythonic(PythonToolParser):
    """[name(key=value, ...), ...]"""

    info = Info(
        summary="a list of Python calls that begins the answer (Llama 3.2, Llama 4)",
        source="https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (
        Markers(start="[", opens_answer=True, is_body=True),
        Markers(start="<|python_start|>", end="<|python_end|>"),
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        *SAMPLES,
        Sample(
            text='Sure. <|python_start|>[find(q="<|python_end|>")]<|python_end|>',
            content="Sure.",
            calls=(ToolCall(name="find", arguments='{"q": "<|python_end|>"}'),),
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = (("[func_name1(", "[func1("),)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, *cls.mentions)


class Llama4Pythonic(Pythonic):
    """Llama 4's Python calls."""

    info = Info(
        summary="a list of Python calls, also between <|python_start|> tags (Llama 4)",
        source="https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/",
    )
    auto_rank = 2
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = (*Pythonic.mentions, "<|header_start|>")
