"""What vLLM's parsers are given and what they return: the names and fields that files rely on.

Fields that nobody here reads are kept as they come.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dovetail_vllm_compat.helpers import make_tool_call_id


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class FunctionCall(_Record):
    """A call that was found; `arguments` is JSON text."""

    id: str | None = None
    name: str
    arguments: str


class ToolCall(_Record):
    """A call with its id."""

    id: str = Field(default_factory=make_tool_call_id)
    type: Literal["function"] = "function"
    function: FunctionCall


class ExtractedToolCallInformation(_Record):
    """The calls and the content of a whole answer."""

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class DeltaFunctionCall(_Record):
    """More of a call: its name, or a piece of its arguments."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(_Record):
    """News of the call number `index`."""

    id: str | None = None
    type: Literal["function"] | None = None
    index: int
    function: DeltaFunctionCall | None = None


class DeltaMessage(_Record):
    """News of an answer. The reasoning goes by two names."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, given: Any) -> Any:
        if isinstance(given, dict) and "reasoning_content" in given:
            given = dict(given)
            older = given.pop("reasoning_content")
            given.setdefault("reasoning", older)
        return given

    @property
    def reasoning_content(self) -> str | None:
        """Return the reasoning, by its older name."""
        return self.reasoning

    @reasoning_content.setter
    def reasoning_content(self, text: str | None) -> None:
        self.reasoning = text


class FunctionDefinition(_Record):
    """A function that a request offers."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatCompletionToolsParam(_Record):
    """A tool of a request."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class ChatCompletionNamedFunction(_Record):
    """The name of a function that must be called."""

    name: str


class ChatCompletionNamedToolChoiceParam(_Record):
    """A tool_choice that names a function."""

    function: ChatCompletionNamedFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(_Record):
    """A chat request. What the client did not send has OpenAI's or vLLM's default."""

    messages: list[Any] = Field(default_factory=list)
    model: str | None = None
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: ChatCompletionNamedToolChoiceParam | Any = None
    parallel_tool_calls: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool = True
    reasoning_effort: str | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    stop: Any = None
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = 1
    seed: int | None = None
    user: str | None = None


class ResponsesRequest(_Record):
    """A request of the Responses API. Parsers see every request as a chat request: this is a name
    for annotations and isinstance."""


class StructuredOutputsParams(_Record):
    """A constraint of an answer, as requests hold it."""
