"""Scores of pairs: what is pooled for them, what comes of it, and who is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.engine.client.pooling.scores import Scoring, cosine, max_sim, plan_scores
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PoolingParams,
)
from dovetail.interfaces.data.spec import PoolingSpec, Selection
from dovetail_testing.fakes.engine import ByteTokenizer

ANY = Selection(kind="pooler", name="any", target="any:Any")
TOKENIZER = ByteTokenizer(None, "")


def spec_of(*tasks: str, is_causal: bool = False, **fields: Any) -> Any:
    pooling = PoolingSpec(tasks=tasks, pooler=ANY, token_pooler=ANY, **fields) if tasks else None
    model = SimpleNamespace(is_causal=is_causal, hf_config={})
    return SimpleNamespace(run=SimpleNamespace(pooling=pooling, model=model, max_model_tokens=64))


def plan(spec: Any, firsts: list[str], seconds: list[str], **how: Any) -> Scoring:
    return plan_scores(spec, TOKENIZER, firsts, seconds, **how)


def test_vectors_are_compared_and_no_text_is_pooled_twice() -> None:
    scoring = plan(spec_of(EMBED, TOKEN_EMBED), ["q"], ["a", "q", "a"])
    assert [one.prompt for one in scoring.prompts] == ["q", "a"]
    assert {one.params.task for one in scoring.prompts} == {EMBED}
    vectors = [np.array([3.0, 0.0]), np.array([1.0, 1.0])]
    assert scoring.scores(vectors) == pytest.approx([0.5**0.5, 1.0, 0.5**0.5])


def test_tokens_are_compared_each_with_its_nearest() -> None:
    scoring = plan(spec_of(TOKEN_EMBED), ["q"], ["a"])
    first, second = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[0.5, 0.5], [1.0, -1.0]])
    assert scoring.scores([first, second]) == [2.0]
    assert max_sim(first, second[:1]) == 1.5


def test_an_encoder_of_one_class_reads_both_texts() -> None:
    scoring = plan(spec_of(CLASSIFY, TOKEN_CLASSIFY, labels=("yes",)), ["q", "r"], ["a", "b"])
    assert [one.prompt for one in scoring.prompts] == [tuple(b"qa"), tuple(b"rb")]
    assert scoring.scores([np.array([0.25]), np.array([0.75])]) == [0.25, 0.75]


def test_a_decoder_of_one_class_reads_them_joined() -> None:
    spec = spec_of(CLASSIFY, labels=("yes",), is_causal=True)
    assert plan(spec, ["q"], ["a"]).prompts[0].prompt == "qa"
    joined = plan(spec, ["q"], ["a"], join=lambda first, second: f"<{first}|{second}>")
    assert joined.prompts[0].prompt == "<q|a>"


def test_params_are_kept_but_for_the_task() -> None:
    params = PoolingParams(task=EMBED, is_activated=False)
    scoring = plan(spec_of(CLASSIFY, labels=("yes",)), ["q"], ["a"], params=params)
    assert scoring.prompts[0].params == PoolingParams(task=CLASSIFY, is_activated=False)


def test_prompts_of_the_checkpoint_stand_before_the_texts() -> None:
    spec = spec_of(EMBED, prompts={"query": "Q: ", "usual": "U: "}, default_prompt="usual")
    texts = [one.prompt for one in plan(spec, ["q"], ["a"]).prompts]
    assert texts == ["U: q", "U: a"]
    texts = [one.prompt for one in plan(spec, ["q"], ["a"], prompt_names=("query", None)).prompts]
    assert texts == ["Q: q", "U: a"]
    with pytest.raises(RequestError, match='no prompt "passage"; there are: query, usual'):
        plan(spec, ["q"], ["a"], prompt_names=("query", "passage"))


@pytest.mark.parametrize(
    ("firsts", "seconds"), [([], ["a"]), (["q"], []), (["q", "r"], ["a"]), (["q"] * 2, ["a"] * 3)]
)
def test_texts_that_do_not_pair(firsts: list[str], seconds: list[str]) -> None:
    with pytest.raises(RequestError, match=r"do not pair|send at least one text"):
        plan(spec_of(EMBED), firsts, seconds)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (spec_of(), "generates text"),
        (spec_of(CLASSIFY, labels=("a", "b")), "one class scores, and this one has 2"),
        (spec_of(TOKEN_CLASSIFY, labels=("a",)), "1 for each token"),
    ],
)
def test_models_that_do_not_score(spec: Any, what: str) -> None:
    with pytest.raises(RequestError, match=what):
        plan(spec, ["q"], ["a"])


def test_the_cosine_of_nothing_is_zero() -> None:
    assert cosine(np.zeros(3), np.ones(3)) == 0.0
