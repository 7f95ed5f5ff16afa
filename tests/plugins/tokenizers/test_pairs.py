"""Pairs of texts are tokenized as transformers does, cut or whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from dovetail.engine.client.pooling.pairs import pair_prompt
from dovetail.errors import RequestError
from dovetail.interfaces.plugin import NoOptions
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.tokenizers.hf import HfTokenizer, TransformersTokenizer
from support.tiny_encoders import write_word_tokenizer

POSTS = ("bert", "bert_processing", "roberta", "none")
PAIRS = (
    ("the dog", "sleeps under the old tree"),
    ("where is the small house on the mountain", "a river"),
    ("dog cat", "mouse tree"),
    ("", "the dog"),
    ("unseen words: Straße", "7 [SEP] 8"),
)


@pytest.fixture(scope="module", params=POSTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    # transformers' BertTokenizer would put BERT's own template in place of the file's.
    return write_word_tokenizer(folder, request.param, tokenizer_class="PreTrainedTokenizerFast")


def types_of(ids: tuple[int, ...], first_text_tokens: int | None) -> list[int]:
    """Return which text the model takes each token for."""
    border = len(ids) if first_text_tokens is None else first_text_tokens
    return [int(at >= border) for at in range(len(ids))]


@pytest.mark.parametrize("made", [HfTokenizer, TransformersTokenizer])
def test_equals_transformers(folder: Path, made: Any) -> None:
    ours, theirs = made(NoOptions(), str(folder)), AutoTokenizer.from_pretrained(folder)
    for first, second in PAIRS:
        for keep in (None, 6, 7, 8, 9, 10, 11):
            cut: dict[str, Any] = {"truncation": True, "max_length": keep} if keep else {}
            wanted = theirs(first, second, return_token_type_ids=True, **cut)
            ids, border = pair_prompt(ours, first, second, max_tokens=100, truncate=keep)
            assert list(ids) == wanted["input_ids"], (first, second, keep)
            assert types_of(ids, border) == wanted["token_type_ids"], (first, second, keep)


def test_a_model_that_is_told_no_types(tmp_path: Path) -> None:
    names = ["input_ids", "attention_mask"]
    folder = write_word_tokenizer(tmp_path, model_input_names=names)
    _, border = pair_prompt(HfTokenizer(NoOptions(), str(folder)), "a", "b", max_tokens=100)
    assert border is None


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return HfTokenizer(NoOptions(), str(write_word_tokenizer(tmp_path)))


@pytest.mark.parametrize("keep", [0, -2, 1, 4])
def test_impossible_lengths(tokenizer: Tokenizer, keep: int) -> None:
    with pytest.raises(RequestError, match=r"truncate_prompt_tokens.*must be"):
        pair_prompt(tokenizer, "the dog", "the cat", max_tokens=100, truncate=keep)


def test_too_long_for_the_context(tokenizer: Tokenizer) -> None:
    long = "dog " * 100_000
    with pytest.raises(RequestError, match=r"context length is 16 tokens\."):
        pair_prompt(tokenizer, "the dog", "the cat " * 7, max_tokens=16)
    with pytest.raises(RequestError, match=r"context length is 16 tokens\."):
        pair_prompt(tokenizer, "the dog", long, max_tokens=16)
    ids, border = pair_prompt(tokenizer, "the dog", long, max_tokens=16, truncate=-1)
    assert (len(ids), border) == (16, 4)


def test_half_a_character(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        pair_prompt(tokenizer, "a", "\ud800", max_tokens=16)
