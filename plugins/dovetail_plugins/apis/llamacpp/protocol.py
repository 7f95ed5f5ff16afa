"""Bodies of llama.cpp's server. Source: its API page, tools/server/README.md of llama.cpp.

Fields that other endpoint families take too (`grammar`, `json_schema`, `repeat_penalty`, ...) are
in the tables of the kind `request_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from dovetail.server.endpoint import INT31, MAX_NAME_CHARS, Body, SamplingFields
from dovetail_plugins.apis._pool.fields import PoolFields

NEVER = -100.0
"""The bias of a token that is never drawn."""
TEXT_MARK = "="
"""The start of a key that is a text, not a token id."""
RANDOM_SEEDS = (-1, (1 << 32) - 1)
"""Seeds that leave the choice to the server."""
MAX_EXTRAS = 1024
MAX_LORAS = 64
MAX_FIELDS = 256
MAX_INDENT = 1 << 16
MIN_TOP_P = 1e-6
"""The `top_p` that leaves only the most likely token."""
Milliseconds = Annotated[float, Field(ge=-1, le=1e9)]
FieldPath = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class LoraScale(Body):
    """An adapter by its place in /lora-adapters, and its scale."""

    id: int
    scale: float


class ContinueRequest(SamplingFields):
    """The fields of /completion and /infill. A negative `max_tokens` (`n_predict`) leaves the
    length to the context."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=-INT31, le=INT31)] | None = None
    stream: bool = False
    n_probs: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    post_sampling_probs: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    cache_prompt: bool = True
    id_slot: Annotated[int, Field(ge=-1, le=INT31)] = -1
    n_indent: Annotated[int, Field(ge=0, le=MAX_INDENT)] = 0
    t_max_predict_ms: Milliseconds = 0
    samplers: str | Annotated[list[str], Field(max_length=64)] | None = None
    lora: Annotated[list[LoraScale], Field(max_length=MAX_LORAS)] | None = None
    response_fields: Annotated[list[FieldPath], Field(max_length=MAX_FIELDS)] | None = None
    reasoning_format: Any = None

    @model_validator(mode="wrap")
    @classmethod
    def _in_bounds(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Convert values that llama.cpp takes and `SamplingFields` does not."""
        return read({**value, **dict(_settled(value))} if isinstance(value, dict) else value)


def _settled(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield fields with other values: a negative temperature is greedy, like `top_p` 0."""
    if _is_number(value.get("temperature")) and value["temperature"] < 0:
        yield "temperature", 0.0
    if _is_number(value.get("top_p")) and value["top_p"] <= 0:
        yield "top_p", MIN_TOP_P
    if value.get("seed") in RANDOM_SEEDS:
        yield "seed", None
    if isinstance(value.get("stop"), list):
        yield "stop", [one for one in value["stop"] if one != ""]
    biases = biases_by_key(value.get("logit_bias"))
    if biases is not None:
        yield "logit_bias", biases


def biases_by_key(value: Any) -> dict[str, Any] | None:
    """Return biases by token ids and by texts with a mark; None for another shape.

    In a list of pairs a string is always a text; in an object one of digits is a token id.
    """
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        pairs = ((int(k) if k.isascii() and k.isdigit() else k, bias) for k, bias in value.items())
    elif isinstance(value, list) and all(_is_pair(one) for one in value):
        pairs = ((one[0], one[1]) for one in value)
    else:
        return None
    return {_key(named): NEVER if bias is False else bias for named, bias in pairs}


def _key(named: int | str) -> str:
    return f"{TEXT_MARK}{named}" if isinstance(named, str) else str(named)


def _is_pair(one: Any) -> bool:
    is_pair = isinstance(one, list) and len(one) == 2
    return is_pair and isinstance(one[0], int | str) and not isinstance(one[0], bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class CompletionRequest(ContinueRequest):
    """A request to continue one or more prompts."""

    prompt: Any = None


class ExtraFile(Body):
    """Context from another place: a piece of a file."""

    text: str
    filename: str | None = None


class InfillRequest(ContinueRequest):
    """A request for the text between a prefix and a suffix."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=MAX_EXTRAS)] | None = None
    prompt: str = ""


class LlamaEmbedRequest(PoolFields):
    """A request for vectors. `content` and `input` are the same field."""

    content: Any = None
    input: Any = None
    embd_normalize: Annotated[int, Field(ge=-1, le=INT31)] = 2


class SlotRequest(Body):
    """The file to save a slot to, or to restore it from."""

    filename: str | None = None
