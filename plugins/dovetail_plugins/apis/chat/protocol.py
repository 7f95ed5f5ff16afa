"""Answers of /v1/chat/completions; its request is in `generate.chat_body`. Source: the OpenAI API
reference, chat."""

from __future__ import annotations

from typing import Any, Literal

from dovetail.server.endpoint import (
    Reply,
    TokenLogprob,
)
from dovetail_plugins.usage import Timings, Usage


class ChatLogprobs(Reply):
    """Logprobs of a choice."""

    content: list[TokenLogprob] | None = None
    refusal: list[TokenLogprob] | None = None


class CallFunction(Reply):
    """Name and arguments; either may be missing in a delta."""

    name: str | None = None
    arguments: str | None = None


class ReplyToolCall(Reply):
    """A tool call."""

    id: str
    type: Literal["function"] = "function"
    function: CallFunction


class CallCustom(Reply):
    """Name and input of a custom tool's call; either may be missing in a delta."""

    name: str | None = None
    input: str | None = None


class ReplyCustomCall(Reply):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"] = "custom"
    custom: CallCustom


class ToolCallPiece(Reply):
    """A piece of a tool call in a stream. Only the first has an id, a type and a name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: CallFunction | None = None
    custom: CallCustom | None = None


class ReplyDelta(Reply):
    """A piece of the answer in a stream."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallPiece] | None = None


class ReplyMessage(Reply):
    """The answer. Missing fields are null."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ReplyToolCall | ReplyCustomCall] | None = None
    refusal: str | None = None


class ChatChoice(Reply):
    """One of n answers."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatReply(Reply):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    metrics: Timings | None = None
    kv_transfer_params: dict[str, Any] | None = None


class TimedChatReply(ChatReply):
    """The whole answer with its times, for a request that wants them."""

    timings: dict[str, Any]


class ChatChunkChoice(Reply):
    """A piece of one of n answers."""

    index: int
    delta: ReplyDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatChunk(Reply):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    metrics: Timings | None = None
    kv_transfer_params: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    prompt_progress: dict[str, int] | None = None
