"""Bodies of /v1/parse."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from dovetail.server.endpoint import MAX_NAME_CHARS, MAX_TOOLS, Body, Reply, ToolBody
from dovetail_plugins.apis.chat.protocol import ReplyMessage

MAX_TEXT_CHARS = 1 << 22

ParserName = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class ParseRequest(Body):
    """A request to parse a model's text. `prompt` is the prompt before the text, or its end."""

    text: Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
    prompt: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    tool_parser: ParserName | None = None
    reasoning_parser: ParserName | None = None


class ParseReply(Reply):
    """The events in order, and the message that they form."""

    events: list[dict[str, Any]]
    message: ReplyMessage
    starts_inside_reasoning: bool
