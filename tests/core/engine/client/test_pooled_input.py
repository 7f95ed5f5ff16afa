"""PooledInput: what is asked of a prompt is checked before the engine hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.engine.client.pooling.input_processor import PooledInput, verify_pooling
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import CLASSIFY, EMBED, TASKS, PoolingParams
from dovetail.interfaces.data.spec import PoolingSpec, Selection
from dovetail_testing.fakes.engine import ByteTokenizer

ANY = Selection(kind="pooler", name="any", target="any:Any")
PARAMS = PoolingParams(task=EMBED)
START, END = 200, 201


class Framed(ByteTokenizer):
    """Bytes between a start and an end."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the bytes, framed."""
        ids = super().encode(text, add_special_tokens=False)
        return [START, *ids, END] if add_special_tokens else ids


def spec_of(**fields: Any) -> PoolingSpec:
    return PoolingSpec(
        **{"tasks": (EMBED,), "pooler": ANY, "token_pooler": ANY, "size": 8, **fields}
    )


def pooled_input(pooling: PoolingSpec | None = None, *, most: int = 16) -> PooledInput:
    run = SimpleNamespace(
        pooling=pooling or spec_of(),
        max_model_tokens=most,
        model=SimpleNamespace(vocab_size=256, eos_token_ids=()),
        adapters=None,
    )
    spec: Any = SimpleNamespace(run=run, has_tokenizer=True, tokenizer=None)
    reads_media: Any = None
    return PooledInput(spec, Vocabularies(spec, Framed(None, "")), reads_media)


def ids_of(prompt: Any, **how: Any) -> list[int]:
    return list(pooled_input().prepare(prompt, PARAMS, "r", **how).prompt_ids)


def test_a_request_of_one_token_that_is_not_drawn() -> None:
    prepared = pooled_input().prepare("ab", PARAMS, "r", serial=7, priority=3, cache_salt="s")
    (request,) = prepared.requests
    assert request.prompt_ids == (START, 97, 98, END)
    assert (request.request_id, request.priority, request.cache_salt) == ("r/7.0", 3, "s")
    assert request.pooling == PARAMS
    assert request.sampling.max_tokens == 1


def test_texts_are_cut_between_their_special_tokens() -> None:
    assert ids_of("abcdef", truncate=5) == [START, *b"abc", END]
    assert ids_of("abcdef", truncate=5, keeps_start=False) == [START, *b"def", END]
    assert ids_of("abc", truncate=5) == [START, *b"abc", END]
    assert ids_of("abcdef", truncate=3, adds_special_tokens=False) == [*b"abc"]
    assert ids_of("x" * 1000, truncate=-1) == [START, *b"x" * 14, END]
    assert ids_of("xy" * 100_000, truncate=-1, keeps_start=False) == [START, *b"xy" * 7, END]


def test_token_ids_are_cut_as_they_are() -> None:
    assert ids_of([1, 2, 3, 4], truncate=3) == [1, 2, 3]
    assert ids_of([1, 2, 3, 4], truncate=3, keeps_start=False) == [2, 3, 4]
    assert ids_of(list(range(100)), truncate=-1) == list(range(16))


@pytest.mark.parametrize(
    ("prompt", "how", "said"),
    [
        ("x" * 15, {}, "has 17 tokens; this model's maximum context length is 16"),
        ("word " * 100_000, {}, r"context length is 16 tokens\."),
        ([], {}, "the prompt has no tokens"),
        ("", {"adds_special_tokens": False}, "the prompt has no tokens"),
        ([1, 256], {}, "256 is not a valid token id"),
        ([1, -1], {}, "-1 is not a valid token id"),
        ([1, True], {}, "True is not a valid token id"),
        ([1, "a"], {}, "'a' is not a valid token id"),
        ("\ud800", {}, "not valid Unicode"),
        ("ab", {"truncate": 0}, "truncate_prompt_tokens: must be -1 or at least 1"),
        ("ab", {"truncate": -2}, "truncate_prompt_tokens: must be -1 or at least 1"),
        ("ab", {"truncate": 2}, "must be at least 3 here, not 2: 2 special tokens"),
    ],
)
def test_wrong_prompts(prompt: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        ids_of(prompt, **how)


@pytest.mark.parametrize(
    ("model", "params", "said"),
    [
        (None, {"task": EMBED}, "generates text"),
        (spec_of(), {"task": CLASSIFY}, "does not do classify; it does embed"),
        (spec_of(), {"task": "dream"}, '"dream" is not a pooling task; there are: embed'),
        (spec_of(), {"task": EMBED, "dimensions": 0}, "dimensions: must be at least 1"),
        (spec_of(), {"task": EMBED, "dimensions": 4}, "not trained for fewer dimensions"),
        (
            spec_of(is_matryoshka=True),
            {"task": EMBED, "dimensions": 9},
            "the model's vectors have 8",
        ),
        (
            spec_of(is_matryoshka=True, allowed_dimensions=(2, 4)),
            {"task": EMBED, "dimensions": 3},
            "the model was trained for 2, 4",
        ),
    ],
)
def test_what_a_model_does_not_do(
    model: PoolingSpec | None, params: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        verify_pooling(model, PoolingParams(**params))


def test_what_a_model_does() -> None:
    for task in TASKS:
        verify_pooling(spec_of(tasks=TASKS), PoolingParams(task=task))
    verify_pooling(spec_of(), PoolingParams(task=EMBED, dimensions=8))
    verify_pooling(spec_of(is_matryoshka=True), PoolingParams(task=EMBED, dimensions=3))
