"""Tool calls of gpt-oss: messages of the harmony format whose recipient is a function.

Source: OpenAI's description of the harmony format. Models also leave "functions." out. The
arguments end with their JSON, as <|call|> mostly ends the answer; a message that is not JSON, or
goes to the assistant itself, is content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, JsonSchema, concat
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.json_text import check, skip_blanks
from dovetail_plugins.syntax.json_calls import object_at, schema_of
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers._harmony import (
    CALL,
    END,
    HEAD,
    LAYOUT,
    MESSAGE,
    OVER,
    PART_OF_HEAD,
    START,
    STARTS,
    TO,
)

MAX_HEAD_CHARS = 256
ASSISTANT = "assistant"
NOTHING = ("", "null", '""', "()")
"""Messages to a tool that was offered which call it without arguments."""


class OpenAi(ToolParser):
    """to=functions.NAME or to=NAME, perhaps <|constrain|>json, <|message|> and the arguments."""

    info = Info(
        summary="tool messages of the harmony format (gpt-oss)",
        source="https://cookbook.openai.com/articles/openai-harmony",
    )
    auto_name: ClassVar[str] = "gpt-oss"
    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    markers: ClassVar[tuple[Markers, ...]] = (
        *(Markers(start=start) for start in STARTS),
        Markers(start=TO, opens_answer=True),
    )
    layout: ClassVar[tuple[str, ...]] = LAYOUT
    inner: ClassVar[tuple[str, ...]] = ("<|channel|>", "<|constrain|>", MESSAGE, END)
    heads: ClassVar[re.Pattern[str] | None] = re.compile(
        rf"(?:{'|'.join(map(re.escape, STARTS))}|\A\s*+{TO}){HEAD.pattern}"
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}weather <|constrain|>json{MESSAGE}{{"city": "Paris"}}{CALL}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f"<|channel|>commentary{MESSAGE}I look it up.<|end|><|start|>assistant {TO}"
            f"functions.now<|channel|>commentary json{MESSAGE}{{}}{CALL}<|start|>assistant{START}"
            f'my.find{MESSAGE}{{"q": "\\"{CALL}\\" \\u00e9 ☃"}}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="my.find", arguments=f'{{"q": "\\"{CALL}\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(
            text=f" {TO}functions.now<|channel|>commentary <|constrain|>json{MESSAGE}{{}}",
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
        Sample(
            text=f"{STARTS[0]}math.sum <|constrain|>json{MESSAGE}{{}}{CALL}",
            calls=(ToolCall(name="math.sum", arguments="{}"),),
        ),
        Sample(text=f"{STARTS[0]}assistant{MESSAGE}I look it up.{END}", content="I look it up."),
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
        """Return the call in a region, or a message as text. Raises: MalformedToolCall"""
        head = HEAD.match(body)
        if head is None:
            raise MalformedToolCall("no recipient")
        text = body[head.end() :]
        if text.strip() in NOTHING and head["name"] in {tool.name for tool in tools}:
            return [ToolCall(name=head["name"], arguments="{}")]
        if not _is_call(head, text, tools):
            return [ToolCall(name="", arguments="", text=text)]
        checked = check(body, skip_blanks(body, head.end()))
        if checked.fault is not None:
            return [ToolCall(name=head["name"], arguments=text.lstrip(), text=text)]
        return [ToolCall(name=head["name"], arguments=object_at(text.strip()))]

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call written so far. Raises: MalformedToolCall"""
        head = HEAD.match(body)
        if head is None and (MESSAGE in body or not _may_be_head(body)):
            raise MalformedToolCall("no recipient")
        if head is None or not _is_call(head, body[head.end() :], tools):
            return []
        start = skip_blanks(body, head.end())
        return [ToolCall(name=head["name"], arguments=body[start : check(body, start).end])]

    def region_end(self, body: str) -> int | None:
        """Return where the arguments, or the message, end."""
        head = HEAD.match(body)
        if head is None:
            return None
        start = skip_blanks(body, head.end())
        if body[start : start + 1] == "{":
            checked = check(body, start)
            return checked.end if checked.fault is None else checked.fault + 1
        over = OVER.search(body, start)
        return over.start() if over else None

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call; <|call|> would be the answer's end."""
        return concat(f"{START}{tool.name} <|constrain|>json{MESSAGE}", JsonSchema(schema_of(tool)))

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of one call: the format has one in an answer."""
        return call


def _is_call(head: re.Match[str], text: str, tools: Sequence[Tool]) -> bool:
    """Return whether a message is a call: JSON, and not to the assistant, unless that is a tool."""
    is_offered = head["name"] in {tool.name for tool in tools}
    return text.lstrip().startswith("{") and (head["name"] != ASSISTANT or is_offered)


def _may_be_head(body: str) -> bool:
    return len(body) <= MAX_HEAD_CHARS and PART_OF_HEAD.fullmatch(body) is not None
