"""A checkpoint whose settings and tokenizer name different end tokens: either ends an answer, also
one that is constrained, and neither comes before `min_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.data.constraint import JsonSchema, Regex
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM
from dovetail_testing.contract import skipping_unavailable
from support.demo_copies import demo_copy, with_file

STATED, TOKENIZERS = 2039, 2041
BEYOND_THE_TABLE = 5000
NAMES = ("guidance", "lm-format-enforcer", "outlines", "xgrammar")
CHAT: Any = [{"role": "user", "content": "Who are you?"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    ends = [STATED, BEYOND_THE_TABLE]
    model = demo_copy(tmp_path_factory.mktemp("ends"), eos_token_id=ends)
    generation = json.loads((DEMO_PATH / "generation_config.json").read_text(encoding="utf-8"))
    with_file(model, "generation_config.json", json.dumps(generation | {"eos_token_id": ends}))
    settings = json.loads((Path(model) / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["added_tokens_decoder"][str(TOKENIZERS)]["content"] == settings["eos_token"]
    with LLM(model, max_model_len=256, disable_log_stats=True) as made:
        yield made


def test_a_free_answer_ends_where_the_demo_ends_it(llm: LLM) -> None:
    with LLM(max_model_len=256, disable_log_stats=True) as demo:
        wanted = demo.chat(CHAT, use_tqdm=False)[0].outputs[0]
    found = llm.chat(CHAT, use_tqdm=False)[0].outputs[0]
    assert found.finish_reason == "stop" and found.token_ids == wanted.token_ids
    assert found.token_ids[-1] == TOKENIZERS


@pytest.mark.parametrize("end", [STATED, TOKENIZERS])
@pytest.mark.parametrize("name", NAMES)
def test_either_ends_a_constrained_answer(name: str, end: int, llm: LLM) -> None:
    with skipping_unavailable():
        registry.load("structured_output_backend", name)
    other = STATED + TOKENIZERS - end
    bias = {end: 100.0, other: -100.0}
    for constraint in (Regex("[a-z]{2,300}"), JsonSchema(SCHEMA, "")):
        compiled = llm.compile_constraint(constraint, backend=name)
        params = SamplingParams(max_tokens=40, logit_bias=bias, constraint=compiled)
        (result,) = llm.generate("a", params, use_tqdm=False)
        answer = result.outputs[0]
        assert (answer.finish_reason, answer.token_ids[-1]) == ("stop", end), answer
        assert answer.text.isalpha() or json.loads(answer.text).keys() == {"a"}


@pytest.mark.parametrize("end", [STATED, TOKENIZERS])
def test_neither_comes_before_min_tokens(end: int, llm: LLM) -> None:
    biased = SamplingParams(min_tokens=5, max_tokens=40, logit_bias={end: 100.0})
    (result,) = llm.generate("a", biased, use_tqdm=False)
    answer = result.outputs[0]
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] == end and len(answer.token_ids) == 6
    assert not {STATED, TOKENIZERS} & set(answer.token_ids[:-1])
