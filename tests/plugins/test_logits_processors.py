"""The built-in processors through the whole sampler, each against what its field promises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import NoOptions
from dovetail.sampling.sampler import Sampler
from dovetail_plugins.logits_processors.allowed_token_ids import AllowedTokenIds
from dovetail_plugins.logits_processors.bad_words import BadWords, completing_ids
from dovetail_plugins.logits_processors.logit_bias import LogitBias
from dovetail_plugins.logits_processors.min_p import MinP
from dovetail_plugins.logits_processors.min_tokens import MinTokens
from dovetail_plugins.logits_processors.top_n_sigma import TopNSigma

VOCAB = 20
CLASSES: dict[str, type[LogitsProcessor]] = {
    "allowed_token_ids": AllowedTokenIds,
    "bad_words": BadWords,
    "logit_bias": LogitBias,
    "min_p": MinP,
    "min_tokens": MinTokens,
    "top_n_sigma": TopNSigma,
}


def generate(wishes: Sequence[SamplingParams], count: int, logits: torch.Tensor) -> list[list[int]]:
    """Return each row's tokens when every step has the same logits."""
    sampler = Sampler(8, {name: c(NoOptions(), VOCAB) for name, c in CLASSES.items()})
    outputs: list[list[int]] = [[] for _ in wishes]
    for row, params in enumerate(wishes):
        tokens = RowTokens(row=row, params=params, prompt_ids=[1], output_ids=outputs[row])
        sampler.add_row(tokens, seed=row)
    rows = np.arange(len(wishes))
    for position in range(count):
        draws = sampler.sample(
            logits.clone(), rows, np.full(len(wishes), position), lambda: logits.clone()
        )
        assert not draws.faults
        for output, token_id in zip(outputs, draws.token_ids, strict=True):
            output.append(token_id)
    return outputs


def ladder(rows: int) -> torch.Tensor:
    """Return logits whose best token is 19, then 18, ..."""
    return torch.arange(VOCAB).float().expand(rows, -1).clone()


def test_top_n_sigma_drops_what_is_far_below_the_best_at_any_temperature() -> None:
    spread = float(ladder(1).std(unbiased=False))  # 5.77: 13.2 and above are within one
    for temperature, sigmas in ((1.0, 1.0), (50.0, 1.0), (50.0, 0.5)):
        wish = SamplingParams(temperature=temperature, extra_args={"top_n_sigma": sigmas})
        least = math.ceil(19 - sigmas * spread)
        (drawn,) = generate([wish], 400, ladder(1))
        assert min(drawn) >= least
        assert temperature == 1.0 or set(drawn) == set(range(least, VOCAB))
    (drawn,) = generate([SamplingParams(temperature=50.0, extra_args={})], 400, ladder(1))
    assert min(drawn) < 5


@pytest.mark.parametrize("value", ["x", True, float("nan"), 1e9])
def test_top_n_sigma_is_a_number(value: object) -> None:
    params = SamplingParams(extra_args={"top_n_sigma": value})
    assert TopNSigma.wants(params)
    with pytest.raises(RequestError, match="top_n_sigma"):
        TopNSigma.verify(params, VOCAB)
    assert not TopNSigma.wants(SamplingParams(extra_args={"top_n_sigma": -1}))
    assert not TopNSigma.wants(SamplingParams())


def test_each_row_gets_what_it_asked() -> None:
    greedy = {"temperature": 0.0}
    wishes = [
        SamplingParams(**greedy),
        SamplingParams(**greedy, allowed_token_ids=(3, 4)),
        SamplingParams(**greedy, bad_words_token_ids=((19,), (18, 18))),
        SamplingParams(**greedy, logit_bias={2: 100.0, 19: -5.0}),
        SamplingParams(**greedy, min_tokens=2, eos_token_ids=(19,)),
        SamplingParams(**greedy, min_tokens=2, eos_token_ids=(19,), ignore_eos=True),
        SamplingParams(**greedy, min_tokens=3, stop_token_ids=(19,)),
    ]
    assert generate(wishes, 4, ladder(len(wishes))) == [
        [19] * 4,
        [4] * 4,
        [18, 17, 18, 17],
        [2] * 4,
        [18, 18, 19, 19],
        [19] * 4,
        [18, 18, 18, 19],
    ]


def test_min_p_keeps_what_is_likely_enough() -> None:
    """At temperature T a token stays when its logit is within -T log(min_p) of the best."""
    params = SamplingParams(temperature=2.0, min_p=math.exp(-1.6))
    drawn = generate([params, SamplingParams(temperature=2.0)], 400, ladder(2))
    assert set(drawn[0]) == {16, 17, 18, 19}
    assert min(drawn[1]) < 16


def test_min_p_of_one_is_greedy() -> None:
    assert generate([SamplingParams(min_p=1.0)], 5, ladder(1)) == [[19] * 5]


@pytest.mark.parametrize(
    ("output", "banned"),
    [([], [7]), ([1], [7, 2]), ([1, 2], [7, 3]), ([9, 1, 2], [7, 3]), ([2, 1], [7, 2])],
)
def test_completing_ids(output: list[int], banned: list[int]) -> None:
    params = SamplingParams(bad_words_token_ids=((7,), (1, 2), (1, 2, 3), ()))
    tokens = RowTokens(row=0, params=params, prompt_ids=[1, 1, 2], output_ids=output)
    assert completing_ids(tokens) == banned


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("allowed_token_ids", SamplingParams(allowed_token_ids=(0, VOCAB))),
        ("bad_words", SamplingParams(bad_words_token_ids=((1, -1),))),
        ("logit_bias", SamplingParams(logit_bias={VOCAB: 1.0})),
        ("min_tokens", SamplingParams(min_tokens=1, stop_token_ids=(VOCAB + 5,))),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(name: str, params: SamplingParams) -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        CLASSES[name].verify(params, VOCAB)
