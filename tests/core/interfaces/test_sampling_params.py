"""SamplingParams: every bound is checked, and the first field outside of one is named."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import MAX_BIASES, MAX_N, MAX_STOPS, SamplingParams

GOOD: tuple[dict[str, Any], ...] = (
    {},
    {"n": MAX_N, "temperature": 0.0, "top_k": -1, "top_p": 1.0, "min_p": 1.0},
    {"seed": -(1 << 63)},
    {"seed": (1 << 64) - 1},
    {"min_tokens": 5, "max_tokens": 5},
    {"logprobs": -1, "prompt_logprobs": -1, "truncate_prompt_tokens": -1},
    {"stop": ("a",) * MAX_STOPS, "logit_bias": {0: -100.0, 1: 100.0}},
)
BAD: tuple[tuple[str, Any], ...] = (
    ("n", 0),
    ("n", MAX_N + 1),
    ("max_tokens", 0),
    ("min_tokens", -1),
    ("top_k", -2),
    ("top_p", 0.0),
    ("top_p", 1.5),
    ("min_p", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0.0),
    ("seed", 1 << 64),
    ("logprobs", -2),
    ("stop", ("",)),
    ("stop", ("a",) * (MAX_STOPS + 1)),
    ("logit_bias", dict.fromkeys(range(MAX_BIASES + 1), 0.0)),
    ("allowed_token_ids", ()),
)


@pytest.mark.parametrize("fields", GOOD, ids=str)
def test_the_bounds_themselves_are_allowed(fields: dict[str, Any]) -> None:
    SamplingParams(**fields).verify()


@pytest.mark.parametrize(("field", "value"), BAD, ids=range(len(BAD)))
def test_the_field_that_is_outside_is_named(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value}).verify()
    assert caught.value.where == field


def test_a_bias_is_named_by_its_token() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(logit_bias={3: 0.0, 7: 101.0}).verify()
    assert caught.value.where == "logit_bias[7]"


def test_min_tokens_stay_below_max_tokens() -> None:
    with pytest.raises(RequestError, match="min_tokens is above max_tokens"):
        SamplingParams(min_tokens=6, max_tokens=5).verify()
