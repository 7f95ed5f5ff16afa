"""Conversion of a body's sampling fields to SamplingParams, with max_tokens that fit the context.

It uses no prompt text and no tokenizer; the engine checks the same bounds again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from dovetail.engine.client.requests.claims import claimed_fields, extra_args
from dovetail.engine.context_length import max_tokens_within, room_for_answer
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.observability.logging import shortened
from dovetail.server.generate.body.fields import SamplingFields

_COPIED = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "logits_processors",
)  # fmt: skip
_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
MAX_KEY_CHARS = 64
_TUPLES = ("stop_token_ids", "logprob_token_ids", "allowed_token_ids", "bad_words")


class ParamsMaker(Protocol):
    """The part of the engine that provides default params."""

    spec: EngineSpec

    def default_params(self, **fields: Any) -> SamplingParams:
        """Return the server's defaults overlaid by the given fields."""


def sampling_fields(body: SamplingFields) -> dict[str, Any]:
    """Return the fields set in the request, in the form of SamplingParams."""
    fields = {n: getattr(body, n) for n in _COPIED if getattr(body, n) is not None}
    fields |= {n: getattr(body, n) for n in _FLAGS if n in body.model_fields_set}
    fields |= {n: tuple(getattr(body, n)) for n in _TUPLES if getattr(body, n) is not None}
    if body.stop is not None:
        fields["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.logit_bias is not None:
        fields["logit_bias"] = _token_biases(body.logit_bias)
    if body.prompt_logprobs is not None:
        fields["prompt_logprobs"] = body.prompt_logprobs
    return fields


def build_sampling(
    engine: ParamsMaker, body: SamplingFields, fields: Mapping[str, Any], num_prompt_tokens: int
) -> tuple[SamplingParams, int | None]:
    """Return (checked params, the lowered max_tokens or None). It is lowered if it does not fit the
    context. `fields` override the body's. Raises: RequestError"""
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise RequestError(f"must be at least n, which is {body.n or 1}.", where="best_of")
    claimed = claimed_fields(engine.spec)
    extra = {**engine.spec.default_sampling.get("extra_args", {})}
    extra |= extra_args(body.model_extra or {}, claimed)
    params = engine.default_params(**{**sampling_fields(body), "extra_args": extra, **fields})
    room = room_for_answer(num_prompt_tokens, engine.spec.run.max_model_tokens)
    clamped = params.max_tokens is not None and params.max_tokens > room
    max_tokens = max_tokens_within(room, params.max_tokens, params.min_tokens)
    params = msgspec.structs.replace(params, max_tokens=max_tokens)
    params.verify()
    return params, room if clamped else None


def _token_biases(given: Mapping[str, float]) -> dict[int, float]:
    return {_token_id(key): bias for key, bias in given.items()}


def _token_id(key: str) -> int:
    """Return a key of logit_bias as a token id. Raises: RequestError"""
    if not re.fullmatch(r"[0-9]{1,10}", key):
        raise RequestError(
            f"{json.dumps(shortened(key, MAX_KEY_CHARS))} is not a token id.",
            where="logit_bias",
            fix="use token ids as keys; /tokenize returns those of a text.",
        )
    return int(key)
