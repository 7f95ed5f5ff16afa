"""A logits processor of a file claims fields of requests and is given the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.requests.claims import claimed_fields, extra_args
from dovetail.errors import RequestError
from dovetail.registry.admin import load_file
from support.inside import engine_of

FILE = Path(__file__).parents[2] / "examples/favoured_words.py"
PROMPT = "la la la la la la"
CLAIMED = frozenset({"favoured_words", "favoured_until"})


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    chosen = [f"{FILE}:FavouredWords"]
    with LLM(max_model_len=128, logits_processors=chosen, use_tqdm_on_load=False) as opened:
        yield opened


def test_extra_args_reach_the_processor(llm: LLM) -> None:
    def answer(**extra: object) -> tuple[int, ...]:
        params = SamplingParams(
            temperature=0, max_tokens=20, ignore_eos=True, extra_args=extra, logit_bias={}
        )
        (result,) = llm.generate(PROMPT, params, use_tqdm=False)
        assert result.error is None
        return result.outputs[0].token_ids

    plain = answer()
    assert answer(favoured_words={}) == plain
    wanted = llm.get_tokenizer().encode("?", add_special_tokens=False)[-1]
    assert plain[:3] != (wanted,) * 3
    assert answer(favoured_words={"?": 100}) == (wanted,) * 20
    short = answer(favoured_words={"?": 100}, favoured_until=3)
    assert short[:3] == (wanted,) * 3 and wanted not in short[3:]


def test_texts_become_token_ids(llm: LLM) -> None:
    sent = {"favoured_words": {".": 1, "!": -2}}
    prepared = engine_of(llm).prepare("x", SamplingParams(extra_args=sent))
    tokenizer = llm.get_tokenizer()
    wanted = {
        str(tokenizer.encode(text, add_special_tokens=False)[-1]): bias
        for text, bias in sent["favoured_words"].items()
    }
    assert prepared.requests[0].sampling.extra_args["favoured_ids"] == wanted


def test_wrong_values_are_refused(llm: LLM) -> None:
    for fields in (
        {"favoured_words": ["x"]},
        {"favoured_words": {"x": "y"}},
        {"favoured_words": {"x": 101}},
        {"favoured_words": {"x": 1}, "favoured_until": -1},
    ):
        with pytest.raises(RequestError, match="favoured_"):
            llm.generate(PROMPT, SamplingParams(extra_args=fields))


def test_the_claims_are_those_of_the_chosen_processors(llm: LLM) -> None:
    assert claimed_fields(llm.spec) > CLAIMED
    assert [entry.name for entry in load_file(FILE)] == ["favoured_words"]


def test_fields_are_found_in_the_body_and_in_xargs() -> None:
    body = {"favoured_until": 2, "other": 1, "vllm_xargs": {"favoured_words": 1}}
    assert extra_args(body, CLAIMED) == {"favoured_until": 2, "favoured_words": 1}
    for wrong in (
        {"vllm_xargs": {"other": 1}},
        {"vllm_xargs": [1]},
        {"favoured_until": 2, "vllm_xargs": {"favoured_until": 3}},
    ):
        with pytest.raises(RequestError, match="vllm_xargs"):
            extra_args(wrong, CLAIMED)
