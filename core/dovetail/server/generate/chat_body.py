"""ChatRequest: the body of a conversation, which every family of endpoints turns its own into.

Source: the OpenAI API reference, chat.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.server.generate.bodies import (
    INT31,
    Body,
    SamplingFields,
    StreamOptions,
)

MAX_MESSAGES = 8192
MAX_TOOLS = 512
MAX_PARTS = 1024
MAX_NAME_CHARS = 256
MAX_TEMPLATE_CHARS = 1 << 18

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class ContentPart(Body):
    """One piece of a message: text, or a medium, whose fields are those of `multimodal.parts`."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Body):
    """The function call of an earlier answer; `arguments` is JSON text or already an object."""

    name: Name
    arguments: str | dict[str, Any] = ""


class MessageToolCall(Body):
    """One call of an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """One turn. Both names of the reasoning field are read."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | Annotated[list[ContentPart | str], Field(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionTool(Body):
    """A function the client offers."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """One entry of `tools`."""

    type: Literal["function"] = "function"
    function: FunctionTool


class ResponseFormat(Body):
    """The wanted shape of the answer."""

    type: str
    json_schema: dict[str, Any] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class ThinkingSwitch(Body):
    """Whether the model thinks, in the words of other servers' chat."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class ChatRequest(SamplingFields):
    """A chat completion is asked for."""

    takes_claimed_fields = True

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=INT31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT31)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    include_reasoning: bool = True
    thinking_token_budget: Annotated[int, Field(ge=0, le=INT31)] | None = None
    tool_parser: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    reasoning_parser: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    media_io_kwargs: Annotated[dict[str, dict[str, Any]], Field(max_length=8)] | None = None
    mm_processor_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)] | None = None
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
