"""Bodies of Ollama's API. Source: its API reference (docs/api.md of ollama/ollama)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from dovetail.interfaces.data.sampling_params import MAX_STOPS
from dovetail.server.endpoint import (
    INT31,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Body,
    FunctionCall,
    SamplingFields,
    StopString,
    ToolBody,
)

MAX_TOP_LOGPROBS = 20


class OllamaOptions(Body):
    """Settings of one answer. Options without effect here are not declared."""

    num_predict: Annotated[int, Field(ge=-2, le=INT31)] | None = None
    num_ctx: Annotated[int, Field(ge=1, le=INT31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT31)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-3, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, options: Any) -> Any:
        """Leave out null options: LangChain sends every option, most of them null."""
        if not isinstance(options, dict):
            return options
        return {name: value for name, value in options.items() if value is not None}


class OllamaCallFunction(FunctionCall):
    """The function of a call; its arguments are an object."""

    index: int | None = None


class OllamaToolCall(Body):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: str | None = None
    function: OllamaCallFunction


class OllamaMessage(Body):
    """One turn. A tool's result names its tool, or the call that it answers."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[Any], Field(max_length=MAX_PARTS)] | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaRequest(SamplingFields):
    """The fields of both chat and generate. `format` is "json" or a schema. A prompt that is too
    long is refused unless `truncate`; an answer always ends at the end of the context, as without
    `shift`."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = True
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class OllamaChatRequest(OllamaRequest):
    """A request to answer a conversation."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """A request to answer a prompt, or to continue it with `raw` or `suffix`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: Annotated[list[int], Field(max_length=INT31)] | None = None
    raw: bool | None = None
    images: Annotated[list[Any], Field(max_length=MAX_PARTS)] | None = None


class OllamaEmbedFields(Body):
    """The fields of both embedding requests. No option changes a vector."""

    model: Annotated[str, Field(min_length=1)]
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None


class OllamaEmbedRequest(OllamaEmbedFields):
    """A request for the vectors of texts. Unless `truncate` is false, long texts are truncated."""

    input: str | list[str] = ""
    truncate: bool | None = True
    dimensions: Annotated[int, Field(ge=1, le=INT31)] | None = None


class OllamaEmbeddingsRequest(OllamaEmbedFields):
    """A request for the vector of one text."""

    prompt: str = ""


class OllamaShowRequest(Body):
    """A request for the facts of a model; with `verbose`, also all texts of its vocabulary."""

    model: Annotated[str, Field(min_length=1)]
    verbose: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, given: Any) -> Any:
        """Accept `name`, the field's older name."""
        if isinstance(given, dict) and "model" not in given and "name" in given:
            return {**given, "model": given["name"]}
        return given
