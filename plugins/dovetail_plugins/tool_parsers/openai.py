"""Tool calls of gpt-oss: messages of the harmony format whose recipient is a function.

Source: OpenAI's description of the harmony format. The arguments end with their JSON, as <|call|>
mostly ends the answer. Knows no streaming and no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.form import Form, Json, sequence
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.syntax.json_calls import object_at, schema_of
from dovetail.syntax.json_text import check
from dovetail.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers._harmony import CALL, HEAD, LAYOUT, MESSAGE, START, TO

MAX_HEAD_CHARS = 256


class OpenAi(ToolParser):
    """to=functions.NAME, perhaps <|constrain|>json, then <|message|> and the arguments."""

    info = Info(
        summary="messages to functions in the harmony format (gpt-oss)",
        source="https://cookbook.openai.com/articles/openai-harmony",
    )
    capabilities = frozenset({"parallel_calls", "streams", "has_form"})
    markers: ClassVar[tuple[Markers, ...]] = (
        Markers(start=START),
        Markers(start=f"<|channel|>analysis {TO}"),
        Markers(start=f"<|start|>assistant {TO}"),
        Markers(start=TO, opens_answer=True),
    )
    layout: ClassVar[tuple[str, ...]] = LAYOUT
    inner: ClassVar[tuple[str, ...]] = ("<|channel|>", "<|constrain|>", MESSAGE)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}weather <|constrain|>json{MESSAGE}{{"city": "Paris"}}{CALL}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f"<|channel|>commentary{MESSAGE}I look it up.<|end|><|start|>assistant {TO}now"
            f"<|channel|>commentary json{MESSAGE}{{}}{CALL}<|start|>assistant{START}my.find"
            f'{MESSAGE}{{"q": "\\"{CALL}\\" \\u00e9 ☃"}}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="my.find", arguments=f'{{"q": "\\"{CALL}\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(
            text=f" {TO}now<|channel|>commentary <|constrain|>json{MESSAGE}{{}}",
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
        Sample(text=f"{START} they say", content=f"{START} they say"),
        Sample(
            text=f'{START}weather{MESSAGE}{{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<|channel|>", "commentary", "functions.")

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call in a region. Raises: MalformedToolCall"""
        if (head := HEAD.match(body)) is None:
            raise MalformedToolCall("no name, or no arguments")
        return [ToolCall(name=head["name"], arguments=object_at(body.rstrip(), head.end()))]

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call as far as it is written. Raises: MalformedToolCall"""
        head = HEAD.match(body)
        if head is not None:
            arguments = body[head.end() : check(body, head.end()).end]
            return [ToolCall(name=head["name"], arguments=arguments)]
        at = body.find(MESSAGE, 0, MAX_HEAD_CHARS)
        is_over = bool(body[at + len(MESSAGE) :].strip()) if at >= 0 else len(body) > MAX_HEAD_CHARS
        if is_over or body[:1].isspace():
            raise MalformedToolCall("no name, or no arguments")
        return []

    def region_end(self, body: str) -> int | None:
        """Return where the arguments are over."""
        head = HEAD.match(body)
        return check(body, head.end()).over if head else None

    def form(self, tool: Tool) -> Form:
        """Return the text of one call; <|call|> would be the answer's end."""
        return sequence(f"{START}{tool.name} <|constrain|>json{MESSAGE}", Json(schema_of(tool)))

    def forms(self, call: Form, most: int | None) -> Form:
        """Return the text of one call: the format has one in an answer."""
        return call
