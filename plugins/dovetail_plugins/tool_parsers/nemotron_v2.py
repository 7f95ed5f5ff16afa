"""Tool calls of Nemotron Nano v2: a JSON list between TOOLCALL tags.

Source: the chat template of NVIDIA-Nemotron-Nano-9B-v2.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START, END = "<TOOLCALL>", "</TOOLCALL>"


class NemotronV2(JsonToolParser):
    """[{"name": ..., "arguments": {...}}, ...] in each region."""

    info = Info(
        summary="a JSON list between <TOOLCALL> tags (Nemotron Nano v2)",
        source="https://huggingface.co/nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    )
    auto_rank = 2
    auto_name: ClassVar[str] = "nemotron_v2"
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}[{{"name": "weather", "arguments": {{"city": "Paris"}}}}]{END}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f'I look it up.{START}[{{"name": "now", "arguments": {{}}}}, {{"name": "find", '
            f'"arguments": {{"q": "{END} \\"x\\" \\u00e9 ☃"}}}}]{END}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "{END} \\"x\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f'{START}[{{"name": "weather", "arguments": {{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, START)

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a list of calls."""
        return concat(f"{START}[", separated(call, ", ", most), f"]{END}")
