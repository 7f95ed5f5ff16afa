"""Constrained answers, through the whole engine: beside free ones, with logprobs, penalties and
several completions, short of cache, with guesses; for every backend that is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.constraint import Choice, JsonSchema, Literal, Regex
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM
from dovetail_testing.contract import skipping_unavailable

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "why": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 7, "maximum": 19},
        "kind": {"enum": ["new", "old"]},
    },
    "required": ["why", "age", "kind"],
    "additionalProperties": False,
}
NAMES = ("guidance", "lm-format-enforcer", "outlines", "xgrammar")
PROMPT = "Tell me about the sky: "


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Return the demo model, with little room in its cache."""
    with LLM(num_gpu_blocks_override=24, max_model_len=256, disable_log_stats=True) as made:
        yield made


def need(name: str) -> None:
    """Skip where a backend's package is not installed."""
    with skipping_unavailable():
        registry.load("structured_output_backend", name)


def is_person(text: str) -> bool:
    """Return whether a text is what the schema asks for, in its order."""
    found = json.loads(text)
    return (
        list(found) == ["why", "age", "kind"]
        and len(found["why"]) <= 12
        and 7 <= found["age"] <= 19
        and found["kind"] in ("new", "old")
    )


@pytest.mark.parametrize("name", NAMES)
def test_constrained_and_free_answers_side_by_side(name: str, llm: LLM) -> None:
    need(name)
    compiled = llm.compile_constraint(JsonSchema(PERSON, ""), backend=name)
    digits = llm.compile_constraint(Regex("[0-9]{3}-[a-c]+;"), backend=name)
    free = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    alone = llm.generate(PROMPT, free, use_tqdm=False)[0].outputs[0].token_ids
    hot = {"temperature": 1.5, "max_tokens": 90}
    params = [
        SamplingParams(constraint=compiled, seed=1, **hot),
        free,
        SamplingParams(constraint=compiled, seed=2, n=2, presence_penalty=0.5, **hot),
        SamplingParams(constraint=digits, seed=3, **hot),
        SamplingParams(constraint=compiled, seed=4, logprobs=2, **hot),
        SamplingParams(constraint=compiled, seed=5, repetition_penalty=1.2, **hot),
    ]
    results = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    assert results[1].outputs[0].token_ids == alone
    for index in (0, 2, 4, 5):
        for completion in results[index].outputs:
            assert completion.finish_reason == "stop"
            assert is_person(completion.text)
    first = results[3].outputs[0]
    assert re.fullmatch("[0-9]{3}-[a-c]+;", first.text) or first.finish_reason == "length"
    told = results[4].outputs[0]
    assert told.logprobs is not None
    assert len(told.logprobs) == len(told.token_ids)


def test_guesses_change_no_answer() -> None:
    texts = []
    for extra in ({}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}):
        with LLM(max_model_len=256, disable_log_stats=True, **extra) as llm:
            compiled = llm.compile_constraint(
                JsonSchema({"type": "array", "items": PERSON, "minItems": 2}, "")
            )
            params = SamplingParams(constraint=compiled, temperature=0.0, max_tokens=120)
            texts.append(llm.generate(PROMPT * 3, params, use_tqdm=False)[0].outputs[0].text)
    assert texts[0] == texts[1]
    assert texts[0].startswith('[{"why":"')


def test_a_choice_is_one_of_its_words(llm: LLM) -> None:
    compiled = llm.compile_constraint(Choice((Literal("maybe"), Literal("never"))))
    params = [
        SamplingParams(constraint=compiled, seed=n, temperature=2.0, max_tokens=9) for n in range(8)
    ]
    results = llm.generate([PROMPT] * 8, params, use_tqdm=False)
    assert {result.outputs[0].text for result in results} <= {"maybe", "never"}
