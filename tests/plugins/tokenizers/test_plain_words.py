"""A control word that is to be ordinary text has the tokens that a tokenizer without it gives."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from dovetail_plugins.tokenizers.hf import HfTokenizer, TransformersTokenizer
from dovetail_testing.fakes.async_engine import FakeTokenizer
from support.small_tokenizers import byte_level, sentencepiece_like, unigram

WORD = "<|word|>"
OTHERS = ("<|user|>", "<|done|>")


def with_words(backend: Tokenizer, *, strips: bool = False, word: bool = True) -> Tokenizer:
    tokens = [AddedToken(o, special=True, normalized=False, rstrip=strips, lstrip=strips)
              for o in OTHERS]  # fmt: skip
    if word:
        tokens.append(AddedToken(WORD, special=True, normalized=False))
    backend.add_special_tokens(tokens)
    return backend


def prepends_once(backend: Tokenizer) -> Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return backend


BUILDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": lambda: byte_level(True),
    "sentencepiece-like": sentencepiece_like,
    "unigram": unigram,
    "metaspace first": lambda: prepends_once(unigram()),
}


def tokenizer_of(folder: Path, backend: Tokenizer, kind: Any = HfTokenizer) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return kind(None, str(folder))


def spans(text: str) -> list[tuple[int, int]]:
    found, at = [], text.find(WORD)
    while at >= 0:
        found.append((at, at + len(WORD)))
        at = text.find(WORD, at + 1)
    return found


def random_text(rng: random.Random) -> str:
    pieces = [WORD, *OTHERS, "the dog", " ", "\n", " does not", "mind", "é", "<|", "|>", "  x"]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 20)))


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("build", BUILDS)
def test_the_tokens_are_those_of_a_tokenizer_without_the_word(
    build: str, strips: bool, tmp_path: Path
) -> None:
    content = BUILDS[build]().to_str()
    tokenizer, without = (
        tokenizer_of(
            tmp_path / str(word),
            with_words(Tokenizer.from_str(content), strips=strips, word=word),
        )
        for word in (True, False)
    )
    rng = random.Random(0)
    for _ in range(300):
        text = random_text(rng)
        for adds in (True, False):
            got = tokenizer.encode_with_plain(text, spans(text), add_special_tokens=adds)
            assert list(got) == without.encode(text, add_special_tokens=adds), text
            none = tokenizer.encode_with_plain(text, [], add_special_tokens=adds)
            assert list(none) == tokenizer.encode(text, add_special_tokens=adds), text


@pytest.mark.parametrize("kind", [HfTokenizer, TransformersTokenizer])
@pytest.mark.parametrize("build", BUILDS)
def test_only_the_marked_words_are_text(build: str, kind: Any, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, with_words(BUILDS[build]()), kind)
    text = f"<|user|>the {WORD} dog{WORD}<|done|>{WORD}<|user|>mind"
    (number,) = tokenizer.encode(WORD, add_special_tokens=False)[-1:]
    for marked in range(8):
        chosen = [span for i, span in enumerate(spans(text)) if marked >> i & 1]
        ids = tokenizer.encode_with_plain(text, chosen, add_special_tokens=False)
        assert list(ids).count(number) == 3 - len(chosen)
        assert tokenizer.added_texts() >= {WORD, *OTHERS}


def test_a_word_of_the_vocabulary_itself_is_cut(tmp_path: Path) -> None:
    vocab = [("<unk>", 0.0), ("<s>", -1.0), ("</s>", -1.0), ("▁", -2.0), ("a", -3.0), ("<", -3.0),
             ("s", -3.0), (">", -3.0), ("/", -3.0)]  # fmt: skip
    backend = Tokenizer(models.Unigram(vocab, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<s>", "</s>"])
    tokenizer = tokenizer_of(tmp_path, backend)
    ids = tokenizer.encode_with_plain("<s>a <s>a", [(5, 8)], add_special_tokens=False)
    assert list(ids).count(1) == 1
    assert tokenizer.tokens(ids) == ["<s>", "▁", "a", "▁", "<", "s", ">", "a"]


@pytest.mark.parametrize("build", BUILDS)
def test_added_words_of_ordinary_text_keep_their_ids(build: str, tmp_path: Path) -> None:
    backend = with_words(BUILDS[build]())
    backend.add_tokens([AddedToken("<kept>", normalized=False), AddedToken("dogs do")])
    tokenizer = tokenizer_of(tmp_path, backend)
    text = f"mind {WORD} the dogs do <kept> not<|done|>{WORD} dogs do"
    ids = tokenizer.encode_with_plain(text, spans(text), add_special_tokens=False)
    for word, count in (("dogs do", 2), ("<kept>", 1), ("<|done|>", 1), (WORD, 0)):
        assert list(ids).count(backend.token_to_id(word)) == count, word


def test_the_default_never_makes_the_token() -> None:
    text = "a<|end|>b"
    assert FakeTokenizer().encode_with_plain(text, [(1, 8)]) == [ord(c) for c in text]
