"""Tool calls of the xLAM family: a JSON list, bare, fenced, after [TOOL_CALLS] or after </think>.

Source: the model cards of xLAM-2 and Llama-xLAM-2. The bare list and the fence count only at the
beginning of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

FENCE = "```json"
FENCE_END = "```"


class Xlam(JsonToolParser):
    """[{"name": ..., "arguments": {...}}, ...]"""

    info = Info(
        summary="a JSON list that begins the answer (xLAM)",
        source="https://huggingface.co/Salesforce/Llama-xLAM-2-8b-fc-r",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (
        Markers(start="[", opens_answer=True, is_body=True),
        Markers(start=FENCE, end=FENCE_END, opens_answer=True),
        Markers(start="[TOOL_CALLS]"),
        Markers(start="</think>", stays=True),
        Markers(start="<tool_call>", end="</tool_call>"),
    )
    calls: ClassVar[JsonCalls] = JsonCalls(is_name_enough=False, others=("type", "id"))
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='[{"name": "weather", "arguments": {"city": "Paris"}}]',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text='```json\n[{"name": "now", "arguments": {}}, {"name": "find", "arguments": '
            '{"q": "``` \\"x\\" \\u00e9 ☃"}}]\n```',
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "``` \\"x\\" \\u00e9 ☃"}'),
            ),
        ),
        Sample(
            text='I look it up.</think>\n```json\n[{"name": "now", "arguments": {}}]\n``` and on',
            content="I look it up.</think> and on",
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
        Sample(text="[1] and [2] are notes", content="[1] and [2] are notes"),
        Sample(
            text='[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        if isinstance(query, str) and "[TOOL_CALLS]" in query:
            return ["the chat template writes calls behind Mistral's [TOOL_CALLS]"]
        return unmentioned(query, "single JSON array")

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        text = _unfenced(body)
        return self.calls.parse(text.rstrip().removesuffix(FENCE_END))

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        return [] if FENCE.startswith(body.lstrip()) else self.calls.so_far(_unfenced(body))

    def region_end(self, body: str) -> int | None:
        """Return where the list, or the fence around it, ends."""
        text = _unfenced(body)
        end = None if FENCE.startswith(body.lstrip()) else self.calls.end(text)
        if end is None:
            return None
        rest = text[end:].lstrip()
        if len(text) == len(body) or not FENCE_END.startswith(rest[: len(FENCE_END)]):
            return len(body) - len(text) + end
        return len(body) - len(rest) + len(FENCE_END) if len(rest) >= len(FENCE_END) else None

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a list of calls."""
        return concat("[", separated(call, ", ", most), "]")


def _unfenced(body: str) -> str:
    """Return the text after an opening fence, or the body if there is none."""
    text = body.lstrip()
    return text.removeprefix(FENCE) if text.startswith(FENCE) else body
