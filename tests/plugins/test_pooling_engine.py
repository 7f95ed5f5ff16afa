"""Engines that pool: many lengths at once, prompts in parts, aborts, several engines of a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, PoolingParams
from dovetail.engine.client.results.outputs import numbers
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import EMBED
from support.inside import engine_of
from support.tiny_encoders import mixed_texts, word_tokenizer, write_tiny_bert

PARAMS = PoolingParams(task=EMBED)
VOCAB_SIZE = word_tokenizer().get_vocab_size()


def prompts(count: int, *, most: int) -> list[list[int]]:
    """Return prompts of 1 to `most` tokens; the shortest and the longest are among them."""
    chance = random.Random(count)
    lengths = [1, most, *(chance.randint(1, most) for _ in range(count - 2))]
    return [[chance.randrange(6, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), max_num_batched_tokens=160, use_tqdm_on_load=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def decoder() -> Iterator[LLM]:
    """Return the demo model as one that embeds; its prompts are computed in parts."""
    with LLM(convert="embed", max_num_batched_tokens=16, max_model_len=128) as llm:
        yield llm


@pytest.fixture(params=["encoder", "decoder"])
def either(request: pytest.FixtureRequest) -> LLM:
    found: LLM = request.getfixturevalue(request.param)
    return found


def vectors(llm: LLM, given: Any) -> np.ndarray:
    return np.array([one.outputs.embedding for one in llm.embed(given, use_tqdm=False)])


def test_64_lengths_at_once_equal_each_alone(either: LLM) -> None:
    given = prompts(64, most=128)
    together = vectors(either, given)
    alone = np.concatenate([vectors(either, [one]) for one in given[:24]])
    assert np.abs(together[:24] - alone).max() < 1e-5
    assert len(np.unique(together.round(5), axis=0)) == 64


def test_an_abort_leaves_the_others_as_they_were(either: LLM) -> None:
    given = prompts(9, most=120)
    engine = engine_of(either)
    keys = [engine.submit(engine.prepare_pooled(one, PARAMS)) for one in given]
    found: dict[int, Any] = dict(engine.step().outputs)
    dropped = {keys[1], keys[-1]} - set(found)  # the longest has begun, the last waits
    assert keys[-1] in dropped and (not either.spec.run.model.is_causal or keys[1] in dropped)
    for key in dropped:
        engine.abort(key)
    while engine.has_work:
        step = engine.step()
        assert not step.errors
        found |= dict(step.outputs)
    assert set(found) == set(keys) - dropped
    wanted = dict(zip(keys, vectors(either, given), strict=True))
    for key, output in found.items():
        assert np.abs(numbers(output.pooled) - wanted[key]).max() < 1e-5


def test_a_prefix_from_the_cache_changes_nothing(decoder: LLM) -> None:
    (long,) = prompts(3, most=96)[1:2]
    first, again = (decoder.embed([long], use_tqdm=False)[0] for _ in range(2))
    assert (first.num_cached_tokens, again.num_cached_tokens > 0) == (0, True)
    assert np.abs(first.data - again.data).max() < 1e-6
    (each,) = decoder.encode([long], pooling_task="token_embed", use_tqdm=False)
    assert (each.num_cached_tokens, each.data.shape[0]) == (0, 96)  # all tokens are computed
    assert np.abs(each.data[-1] - first.data).max() < 1e-5


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([5] * 129, "has 129 tokens; this model's maximum context length is 128"),
        ([5, 1 << 20], "is not a valid token id"),
        ([], "has no tokens"),
    ],
)
def test_prompts_that_cannot_be_pooled(either: LLM, prompt: list[int], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        either.embed([[6, 7], prompt], use_tqdm=False)
    assert not engine_of(either).has_work
    assert vectors(either, [[6, 7]]).shape[0] == 1


def test_several_engines(folder: Path, encoder: LLM) -> None:
    texts = mixed_texts(16, most_words=30)
    with LLM(str(folder), data_parallel_size=2, use_tqdm_on_load=False) as llm:
        assert np.abs(vectors(llm, texts) - vectors(encoder, texts)).max() < 1e-5
        with pytest.raises(RequestError, match="does not do classify"):
            llm.classify(texts)
        scores = llm.score(texts[0], texts, use_tqdm=False)
    assert scores[0].outputs.score == pytest.approx(1, abs=1e-5)
    assert [one.error for one in scores] == [None] * 16
