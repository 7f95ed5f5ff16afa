"""The parts shared by all bodies: sampling fields with their bounds, usage, ignored fields.

Models are built at their first use (`defer_build`): building the 120 of all families takes a fifth
of a server's start. Source: the OpenAI API reference, and the extra fields of `vllm serve`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from dovetail.interfaces.data.sampling_params import MAX_BIASES, MAX_N, MAX_STOP_CHARS, MAX_STOPS
from dovetail.server.generate.body.foreign_fields import in_sent_words, translated
from dovetail.server.http.middleware import MAX_REQUEST_ID_CHARS

INT31 = 1 << 31
MAX_LIST = 1 << 16
MAX_CHOICE_TEXTS = 4096
MAX_PIN_S = 86_400
MAX_PARAMS = 32
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512

Count = Annotated[int, Field(ge=0, le=INT31)]
TokenId = Annotated[int, Field(ge=0, le=INT31)]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARS)],
        Annotated[str, Field(max_length=MAX_METADATA_CHARS)],
    ],
    Field(max_length=MAX_METADATA),
]
"""The client's labels of a stored object, with OpenAI's limits."""
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class Body(BaseModel):
    """A request body or a part of one. Unknown fields are stored, so that they can be reported.
    Null in a field with a default means the default, as in OpenAI's schema."""

    model_config = ConfigDict(
        extra="allow", protected_namespaces=(), allow_inf_nan=False, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, given: Any) -> Any:
        if not isinstance(given, dict) or None not in given.values():
            return given
        defaults = _defaulted(cls)
        return {k: v for k, v in given.items() if v is not None or k not in defaults}


@cache
def _defaulted(body: type[BaseModel]) -> frozenset[str]:
    """Return the names (as clients send them) of the fields that have a default and do not take
    null."""
    return frozenset(
        field.alias or name
        for name, field in body.model_fields.items()
        if not field.is_required() and type(None) not in get_args(field.annotation)
    )


class Reply(BaseModel):
    """A response body."""

    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


class StructuredOutputs(Body):
    """A constraint of the answer: one of the first six fields, and options."""

    json_: str | dict[str, Any] | bool | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_TEXTS)] | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    backend: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    close_on_length: bool = False


class TranslatedBody(Body):
    """A body that also takes the fields of other servers (`foreign_fields`)."""

    _sent_as: dict[str, str] = PrivateAttr(default_factory=dict)
    """Fields that were translated from other servers' words -> the fields as sent."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_other_servers(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, dict):
            return read(given)
        body, names = translated(given, frozenset(cls.model_fields))
        try:
            found = read(body)
        except ValidationError as error:
            raise in_sent_words(error, names) from None
        found._sent_as = names
        return found


class SamplingFields(TranslatedBody):
    """The sampling fields of completions and chat. None: the model's or server's default."""

    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_BIASES)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Count = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_beam_search: bool = False
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    early_stopping: bool = False
    prompt_logprobs: Annotated[int, Field(ge=-1, le=1 << 20)] | None = None
    logprob_token_ids: Annotated[list[TokenId], Field(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LIST)] | None = (
        None
    )
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BIASES)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES)] | None = None
    logits_processors: Annotated[dict[str, dict[str, Any]], Field(max_length=32)] | None = None

    @field_validator("logits_processors", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        """Accept the list of older clients: names, or a qualname with its kwargs."""
        return _processors(given) if isinstance(given, list) else given

    priority: Annotated[int, Field(ge=-(1 << 31), le=INT31)] = 0
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    cache_pin_s: Annotated[float, Field(ge=0, le=MAX_PIN_S)] = 0.0
    kv_transfer_params: Annotated[dict[str, Any], Field(max_length=MAX_PARAMS)] | None = None
    request_id: (
        Annotated[str, Field(max_length=MAX_REQUEST_ID_CHARS, pattern=r"^[\w.:-]+$")] | None
    ) = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_TEXTS)] | None = (
        None
    )
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    structural_tag: str | dict[str, Any] | None = None


def _processors(given: list[Any]) -> dict[str, Any]:
    """Return processors by name, each with its options. Raises: ValueError"""
    options: dict[str, Any] = {}
    for one in given:
        if isinstance(one, str):
            options[one] = {}
            continue
        name = one.get("qualname") if isinstance(one, dict) else None
        if not isinstance(name, str) or one.get("args"):
            raise ValueError("each must be a name, or an object with qualname and kwargs")
        options[name] = one.get("kwargs") or {}
    return options


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
