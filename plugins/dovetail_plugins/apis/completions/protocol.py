"""Bodies of /v1/completions. Source: the OpenAI API reference, completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.endpoint import (
    INT31,
    Reply,
    ResponseFormat,
    SamplingFields,
    StreamOptions,
    TokenId,
)
from dovetail_plugins.usage import Timings, Usage

MAX_PROMPTS = 1024
MAX_CHOICES = 2048
"""The maximum of prompts times n."""

PromptIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
PromptIdLists = Annotated[
    list[PromptIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
]
VectorText = Annotated[str, Field(min_length=1)]
"""A tensor in base64."""
VectorTexts = Annotated[list[VectorText], Field(max_length=MAX_PROMPTS)]


class CompletionRequest(SamplingFields):
    """A request to continue one or more prompts."""

    model: str | None = None
    prompt: str | Prompts | PromptIds | PromptIdLists | None = None
    prompt_embeds: (
        VectorText | Annotated[list[VectorText], Field(max_length=MAX_PROMPTS)] | None
    ) = None
    max_tokens: Annotated[int, Field(ge=0, le=INT31)] | None = 16
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=-1, le=1 << 20)] | None = None
    echo: bool = False
    suffix: str | None = None
    add_special_tokens: bool = True
    response_format: ResponseFormat | None = None


class CompletionLogprobs(Reply):
    """Logprobs of a choice, one entry per token in each list."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class CompletionChoice(Reply):
    """One continuation, or a piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class CompletionReply(Reply):
    """The whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    metrics: Timings | None = None
    kv_transfer_params: dict[str, Any] | None = None
