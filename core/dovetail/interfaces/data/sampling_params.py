"""SamplingParams: how one request's tokens are sampled. Pure data with bounds.

Crosses processes, so it is a msgspec struct. Independent of tokenizers: stop strings, bad words and
the like arrive here as text *and*, once the input processor has run, as token ids.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import msgspec
from msgspec.structs import force_setattr

from dovetail.errors import RequestError
from dovetail.interfaces.structured_output import CompiledConstraint

MAX_N = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_BIASES = 1024
SEED_BOUND = 1 << 64


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens an answer may think for; then `end_ids` must follow: the tokens of `end`,
    perhaps after closing words.

    `start` is the text with which an answer begins its thinking; empty: the prompt has begun it.
    """

    tokens: int
    end: str
    end_ids: tuple[int, ...]
    start: str = ""


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """Requests which row of the encoding each token of the decoder's prompt attends to, for tokens
    from `first` on, among the first `num_rows` rows. Nothing is drawn: the answer is pooled, one
    number per token. Only for models with an encoder."""

    first: int
    num_rows: int


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The required form of an answer: one of the first six fields, and options.

    The names are those of the field `structured_outputs` in a request's body. LLM compiles it.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    backend: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    close_on_length: bool = False

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINT_FIELDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'no field'} is set. "
                f"Fix: set exactly one of {', '.join(CONSTRAINT_FIELDS)}."
            )


CONSTRAINT_FIELDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling fields of one request. Units: tokens, natural logarithms.

    In Python, `stop` may be a single string, tuples may be lists, and None means "nothing" in
    fields that hold several values.

    `temperature` 0 is greedy. `top_k` 0 or -1 and `top_p` 1 disable the filter. `seed` None draws
    one at admission. `max_tokens` None means "to the end of the context". `logprobs` n returns the
    n most likely tokens besides the drawn one (-1: the whole vocabulary); `logprob_token_ids`
    returns these tokens instead. `kept_special_ids` are special tokens that are written although
    the others are skipped. `logits_processors` maps a registered processor's name to its JSON
    options; `extra_args` holds the fields that processors claim (LogitsProcessor.claims).
    `constraint` is enforced on the answer; LLM compiles `structured_outputs` into it. `thinking`
    limits the reasoning before it. With `alignment` nothing is drawn. `prediction` is a guess of
    the answer, as tokens: it changes the speed alone.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    kept_special_ids: tuple[int, ...] = ()
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    logits_processors: dict[str, dict[str, Any]] = {}
    extra_args: dict[str, Any] = {}
    structured_outputs: StructuredOutputsParams | None = None
    eos_token_ids: tuple[int, ...] = ()
    constraint: CompiledConstraint | None = None
    thinking: ThinkingBudget | None = None
    alignment: Alignment | None = None
    prediction: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            force_setattr(self, "stop", (self.stop,))
        for name, nothing in _SEVERAL.items():
            value = getattr(self, name)
            if value is None and name not in _NONE_IS_A_VALUE:
                force_setattr(self, name, nothing)
            elif isinstance(value, list):
                force_setattr(self, name, tuple(value))

    def clone(self) -> Self:
        """Return a deep copy."""
        return copy.deepcopy(self)

    def verify(self) -> None:
        """Check every bound. Raises: RequestError naming the first field that is out of range."""
        if self.structured_outputs is not None:
            raise RequestError(
                "it is not compiled.",
                where="structured_outputs",
                fix="use LLM.generate or LLM.chat, which compile it, or set constraint.",
            )
        for field, low, high in _INT_BOUNDS:
            _check_int(field, getattr(self, field), low, high)
        for field, minimum, maximum in _FLOAT_BOUNDS:
            _check_float(field, getattr(self, field), minimum, maximum)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens is above max_tokens.", where="min_tokens")
        self._verify_lists()

    def _verify_lists(self) -> None:
        if len(self.stop) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in self.stop):
            raise RequestError(
                f"at most {MAX_STOPS} strings of {MAX_STOP_CHARS} characters.", where="stop"
            )
        if any(not s for s in self.stop):
            raise RequestError("an empty stop string would stop everything.", where="stop")
        if len(self.logit_bias) > MAX_BIASES:
            raise RequestError(f"at most {MAX_BIASES} entries.", where="logit_bias")
        if len(self.logprob_token_ids) > MAX_BIASES:
            raise RequestError(f"at most {MAX_BIASES} token ids.", where="logprob_token_ids")
        for token_id, bias in self.logit_bias.items():
            _check_float(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("an empty list allows no token.", where="allowed_token_ids")


_SEVERAL: dict[str, Any] = {
    "stop": (),
    "stop_token_ids": (),
    "bad_words": (),
    "bad_words_token_ids": (),
    "allowed_token_ids": (),
    "logprob_token_ids": (),
    "kept_special_ids": (),
    "eos_token_ids": (),
    "prediction": (),
    "logit_bias": {},
    "logits_processors": {},
    "extra_args": {},
}
"""Fields that hold several values -> the empty value."""
_NONE_IS_A_VALUE = frozenset({"allowed_token_ids"})

_INT_BOUNDS: tuple[tuple[str, int, int], ...] = (
    ("n", 1, MAX_N),
    ("max_tokens", 1, 1 << 31),
    ("min_tokens", 0, 1 << 31),
    ("top_k", -1, 1 << 31),
    ("seed", -(1 << 63), SEED_BOUND - 1),
    ("logprobs", -1, 1 << 20),
    ("prompt_logprobs", -1, 1 << 20),
    ("truncate_prompt_tokens", -1, 1 << 31),
)
_FLOAT_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 1e-6, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 1e-3, 100.0),
)


def _check_int(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise RequestError(f"must be from {low} to {high}, not {value}.", where=field)


def _check_float(field: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(f"must be from {low:g} to {high:g}, not {value}.", where=field)
