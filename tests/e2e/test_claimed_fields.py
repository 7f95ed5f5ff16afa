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

DRY = Path(__file__).parents[2] / "examples/dry.py"
PROMPT = "la la la la la la"
CLAIMED = frozenset({"dry_multiplier", "dry_base"})


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=128, logits_processors=[f"{DRY}:Dry"], use_tqdm_on_load=False) as opened:
        yield opened


def repeats(ids: tuple[int, ...], length: int = 5) -> bool:
    runs = [ids[i : i + length] for i in range(len(ids) - length)]
    return len(set(runs)) < len(runs)


def test_extra_args_reach_the_processor(llm: LLM) -> None:
    def answer(**extra: object) -> tuple[int, ...]:
        params = SamplingParams(
            temperature=0, max_tokens=60, ignore_eos=True, extra_args=extra, logit_bias={}
        )
        (result,) = llm.generate(PROMPT, params, use_tqdm=False)
        assert result.error is None
        return result.outputs[0].token_ids

    assert repeats(answer())
    assert answer(dry_multiplier=0) == answer()
    assert not repeats(answer(dry_multiplier=50.0, dry_base=4, dry_sequence_breakers=[]))


def test_texts_become_token_ids(llm: LLM) -> None:
    asked = {"dry_multiplier": 1, "dry_sequence_breakers": [".", "!"]}
    prepared = engine_of(llm).prepare("x", SamplingParams(extra_args=asked))
    tokenizer = llm.get_tokenizer()
    wanted = [tokenizer.encode(text, add_special_tokens=False)[-1] for text in (".", "!")]
    assert prepared.requests[0].sampling.extra_args["dry_breaker_ids"] == wanted


def test_wrong_values_are_refused(llm: LLM) -> None:
    breakers = [{"dry_multiplier": 1, "dry_sequence_breakers": wrong} for wrong in (".", 1, [1])]
    for fields in ({"dry_multiplier": "x"}, *breakers):
        with pytest.raises(RequestError, match="dry_"):
            llm.generate(PROMPT, SamplingParams(extra_args=fields))


def test_the_claims_are_those_of_the_chosen_processors(llm: LLM) -> None:
    assert claimed_fields(llm.spec) > CLAIMED
    assert [entry.name for entry in load_file(DRY)] == ["dry"]


def test_fields_are_found_in_the_body_and_in_xargs() -> None:
    found = extra_args({"dry_base": 2, "other": 1, "vllm_xargs": {"dry_multiplier": 1}}, CLAIMED)
    assert found == {"dry_base": 2, "dry_multiplier": 1}
    for wrong in (
        {"vllm_xargs": {"other": 1}},
        {"vllm_xargs": [1]},
        {"dry_base": 2, "vllm_xargs": {"dry_base": 3}},
    ):
        with pytest.raises(RequestError, match="vllm_xargs"):
            extra_args(wrong, CLAIMED)
