"""Bodies of /v1/messages. Source: the Anthropic API reference, messages and streaming messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.endpoint import (
    INT31,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_PARTS,
    MAX_STOPS,
    MAX_TOOLS,
    Body,
    Reply,
    SamplingFields,
    StopString,
)


class CacheControl(Body):
    """A mark: the prompt up to here should stay cached for a time."""

    type: str = "ephemeral"
    ttl: str = "5m"


class Block(Body):
    """A block of a turn; its type determines the relevant fields."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: str | Annotated[list[Block], Field(max_length=MAX_PARTS)] | dict[str, Any] | None = (
        None
    )
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    source: dict[str, Any] | str | None = None
    title: str | None = None
    context: str | None = None
    cache_control: CacheControl | None = None


class Turn(Body):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=MAX_PARTS)]


class MessageTool(Body):
    """A tool that the client offers. One without a type, or of type custom, is a function; other
    types are Anthropic's own tools."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None
    enable_zoom: bool | None = None


class MessageToolChoice(Body):
    """Whether and which tool is called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks first, for how many tokens at most, and whether its thoughts are
    shown."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=INT31)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Body):
    """How hard the model thinks, and the format of its answer."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountRequest(SamplingFields):
    """A request to count the tokens of a conversation."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[Block], Field(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    cache_control: CacheControl | None = None
    mcp_servers: list[Any] | None = None
    compaction: dict[str, Any] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    media_io_kwargs: Annotated[dict[str, dict[str, Any]], Field(max_length=8)] | None = None
    mm_processor_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None


class MessagesRequest(CountRequest):
    """A request for a message."""

    max_tokens: Annotated[int, Field(ge=1, le=INT31)]
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stream: bool = False
    metadata: dict[str, Any] | None = None


class OutputTokensDetails(Reply):
    """The kinds of generated tokens."""

    thinking_tokens: int = 0


class CacheCreation(Reply):
    """The prompt tokens that a mark made stay cached, by time."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class MessageUsage(Reply):
    """Token counts. The prompt is the sum of the first three: `input_tokens` are those that were
    neither read from the cache nor marked to stay in it. The cache's are null if they are not
    counted."""

    input_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails | None = None


class MessageReply(Reply):
    """The whole message, or the initial part that a stream begins with."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class CountReply(Reply):
    """The number of prompt tokens."""

    input_tokens: int


class MessageErrorInfo(Reply):
    """Anthropic's error object."""

    type: str
    message: str


class MessageErrorReply(Reply):
    """Anthropic's error body."""

    type: Literal["error"] = "error"
    error: MessageErrorInfo
    request_id: str | None = None
