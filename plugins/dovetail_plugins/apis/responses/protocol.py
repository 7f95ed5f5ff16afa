"""Bodies of /v1/responses. Source: the OpenAI API reference, responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.endpoint import (
    INT31,
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    Metadata,
    Reply,
    SamplingFields,
)
from dovetail_plugins.usage import Timings

MAX_ID_CHARS = 128

ConversationName = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]

Item = dict[str, Any]
"""An item of the input or output; its type determines the relevant fields."""


class TextFormat(Body):
    """The required format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    """The format of the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Body):
    """How hard the model thinks."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ConversationRef(Body):
    """A reference to a conversation by id."""

    id: ConversationName


class ContextManagement(Body):
    """When earlier turns are to be replaced by a summary: above this number of prompt tokens."""

    type: str
    compact_threshold: Annotated[int, Field(ge=1, le=INT31)] | None = None


class ResponsesRequest(SamplingFields):
    """A request for a response."""

    model: str | None = None
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT31)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    include: Annotated[list[str], Field(max_length=64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    stream: bool = False
    background: bool | None = None
    store: bool | None = None
    conversation: ConversationName | ConversationRef | None = None
    prompt: dict[str, Any] | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=8)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=INT31)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    media_io_kwargs: Annotated[dict[str, dict[str, Any]], Field(max_length=8)] | None = None
    mm_processor_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=INT31)] | None = None
    client_metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    stream_options: Any = None
    user: Any = None


class CompactRequest(ResponsesRequest):
    """A request to compact a conversation."""

    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES)] = []


class InputTokensRequest(ResponsesRequest):
    """A request to count the prompt tokens of a response."""

    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES)] = []


class InputTokensReply(Reply):
    """The number of prompt tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputDetails(Reply):
    """The sources of the prompt tokens."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(Reply):
    """The kinds of generated tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(Reply):
    """Token counts. The details of the input are null if it is not counted what was cached."""

    input_tokens: int
    input_tokens_details: InputDetails | None
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFault(Reply):
    """Why a response failed."""

    code: str
    message: str


class ResponseReply(Reply):
    """A response, complete or partial."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    conversation: dict[str, str] | None = None
    error: ResponseFault | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str]
    metrics: Timings | None = None


class CompactedReply(Reply):
    """A compacted conversation: the user's messages and a compaction item."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[Item]
    usage: ResponseUsage


class DeletedReply(Reply):
    """The confirmation that a stored response was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
