"""ChatRequest: the body of a conversation. Every endpoint family converts its own body to it.

Source: the OpenAI API reference, chat.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from dovetail.server.generate.body.fields import INT31, Body, SamplingFields, StreamOptions
from dovetail.server.generate.body.words import Words, words_of
from dovetail.server.generate.tools.custom_tools import call_of, function_of

MAX_MESSAGES = 8192
MAX_TOOLS = 512
MAX_PARTS = 1024
MAX_NAME_CHARS = 256
MAX_TEMPLATE_CHARS = 1 << 18

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


def check_name(name: str) -> str:
    """Return the name of an offered tool. Some tool-call syntaxes end a name at white space.
    Raises: ValueError for a name with white space"""
    if name.split() != [name]:
        raise ValueError("must be a name without blanks")
    return name


NewName = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(check_name)]

TOOLS: Words = {
    **words_of("honoured", "a function of the client", "function"),
    **words_of("mapped", "a function of one text; its call comes back as a custom one", "custom"),
    **words_of(
        "left out",
        "what a service runs itself",
        "builtin_function",
        "code_interpreter",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "retrieval",
        "web_search",
        "web_search_preview",
    ),
}
"""What chat's tool types mean here. Unknown types are left out too, unless they have a function."""


class ContentPart(Body):
    """One part of a message: text, or media with the fields of `multimodal.parts`."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Body):
    """The function call of an earlier answer. `arguments` is JSON text or an object. Other values
    come from clients that parsed a truncated answer, and are read as ""."""

    name: Name
    arguments: str | dict[str, Any] = ""

    @field_validator("arguments", mode="before")
    @classmethod
    def _text_or_object(cls, given: Any) -> Any:
        return given if isinstance(given, str | dict) else ""


class MessageToolCall(Body):
    """One tool call of an earlier answer. A custom tool's call is converted to a function call."""

    id: str = ""
    type: Literal["function", "custom"] = "function"
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, given: Any) -> Any:
        custom = given.get("custom") if isinstance(given, dict) else None
        if not isinstance(custom, dict) or given.get("type") != "custom":
            return given
        others = {name: value for name, value in given.items() if name != "custom"}
        return others | {"function": call_of(custom)}


class Message(Body):
    """One turn. Both names of the reasoning field are accepted, and the older `function_call`."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | Annotated[list[ContentPart | str], Field(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_call(cls, given: Any) -> Any:
        call = given.get("function_call") if isinstance(given, dict) else None
        if call is None or given.get("tool_calls"):
            return given
        others = {name: value for name, value in given.items() if name != "function_call"}
        return others | {"tool_calls": [{"function": call}]}


class FunctionTool(Body):
    """A function that the client offers."""

    name: NewName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(Body):
    """A tool that takes text. `format` says what text."""

    name: NewName
    description: str | None = None
    format: Any = None


class ToolBody(Body):
    """One entry of `tools`. A custom tool also has the function that the model sees. For a tool
    that is left out only the type is stored, as a field without effect."""

    type: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)] = "function"
    custom: CustomTool | None = None
    function: FunctionTool

    @property
    def is_left_out(self) -> bool:
        """Return whether the tool is ignored."""
        return self.type not in ("function", "custom")

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kind, custom = given.get("type", "function"), given.get("custom")
        if kind == "custom" and isinstance(custom, dict):
            return {"type": kind, "custom": custom, "function": function_of(custom)}
        if not isinstance(kind, str) or kind in ("", "function", "custom"):
            return given
        if "function" in given and kind not in TOOLS:
            raise ValueError(f'"{kind[:64]}" is not a type of tool; use "function" or "custom"')
        return {"type": kind, "function": {"name": "none"}, kind: True}


class ResponseFormat(Body):
    """The required format of the answer."""

    type: str
    json_schema: dict[str, Any] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class ThinkingSwitch(Body):
    """Whether the model should think, as other servers' chat APIs spell it."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class Prediction(Body):
    """A guess of the answer's text."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS)]

    @property
    def text(self) -> str:
        """Return the text of all parts."""
        content = self.content
        return content if isinstance(content, str) else "".join(one.text or "" for one in content)


class ChatRequest(SamplingFields):
    """The body of a chat completion request."""

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
    prediction: Prediction | None = None
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
