"""Tool calls of MiniMax-M3: invoke tags with a tag per argument, a mark before every tag.

Source: the chat template of MiniMax-M3. Arguments may nest; null values are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Layout, Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_plugins.syntax.nested_tags import NestedTags
from dovetail_plugins.syntax.templates import unmentioned

MARK = "]<]minimax[>["
SECTION = Markers(start=f"{MARK}<tool_call>", end=f"{MARK}</tool_call>")
CALL = Markers(start=f"{MARK}<invoke", end=f"{MARK}</invoke>", is_body=True)
"""Models also leave the section out: a special token is never prose."""
_CALLS = NestedTags(mark=MARK)


def _arg(name: str, value: str) -> str:
    return f"{MARK}<{name}>{value}{MARK}</{name}>"


class MinimaxM3(ToolParser):
    """<invoke name="..."> with <k>v</k> for each argument, ]<]minimax[>[ before each tag."""

    info = Info(
        summary="marked <invoke> tags with a tag per argument (MiniMax-M3)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M3",
    )
    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    auto_rank = 2
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, CALL)
    layout: ClassVar[Layout] = (SECTION.start, SECTION.end)
    inner: ClassVar[tuple[str, ...]] = (MARK,)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{SECTION.start}\n{MARK}<invoke name="weather">{_arg("city", "Paris")}'
            f"{_arg('days', '2')}{MARK}</invoke>\n{SECTION.end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.{SECTION.start}{MARK}<invoke name="now">{MARK}</invoke>{MARK}'
            f'<invoke name="find">{_arg("q", "<b> ☃")}'
            f"{_arg('o', _arg('a', _arg('item', '1.50') + _arg('item', 'x')))}{MARK}</invoke>"
            f"{SECTION.end}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "<b> ☃", "o": {"a": [1.50, "x"]}}'),
            ),
        ),
        Sample(
            text=f"{SECTION.start}none{SECTION.end} and on",
            content=f"{SECTION.start}none{SECTION.end} and on",
        ),
        Sample(
            text=f'{SECTION.start}{MARK}<invoke name="weather">{_arg("days", "2")}{MARK}<city>Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, MARK, "<tool_call>")

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a section. Raises: MalformedToolCall"""
        return _CALLS.parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls as far as whole arguments are written. Raises: MalformedToolCall"""
        return _CALLS.so_far(body, tools)

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call within a section."""
        return _CALLS.constraint(tool)

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a section of calls."""
        inside = separated(call, "\n", most)
        return concat(f"{SECTION.start}\n", inside, f"\n{SECTION.end}")
