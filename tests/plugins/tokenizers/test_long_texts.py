"""Long texts: tokenized in pieces whose tokens are those of the whole, without holding the
interpreter, and bounded by the longest token."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from dovetail_plugins.tokenizers._fast import FastTokenizer
from dovetail_plugins.tokenizers._shape import PIECE_CHARS
from dovetail_testing.tiny.models import TRAINING_TEXT
from support.small_tokenizers import byte_level, sentencepiece_like, unigram

WORDS = [*" ".join(TRAINING_TEXT).split(), "Grüße", "世界", "42", "<|end|>", "e\u0301lan", "don't"]


def tokenizer_of(backend: Tokenizer, folder: Path) -> FastTokenizer:
    (folder / "tokenizer.json").write_text(backend.to_str())
    return FastTokenizer(folder)


def without_prefix(backend: Tokenizer) -> Tokenizer:
    backend.normalizer = normalizers.Replace(" ", "▁")
    return backend


def long_text(seed: int) -> str:
    rng = random.Random(seed)
    breaks = [" "] * 12 + ["  ", "\n", "\n\n", "\t", ", ", ". ", " \n"]
    pieces: list[str] = []
    size = 0
    while size < 5 * PIECE_CHARS:
        pieces += [rng.choice(WORDS), rng.choice(breaks)]
        size += len(pieces[-2]) + len(pieces[-1])
    return "".join(pieces)


def encoded_at_once(tokenizer: FastTokenizer, text: str, adds_special: bool) -> list[int]:
    """Return the tokens that the library gives to a text that is not cut."""
    return tokenizer._backend.encode(text, add_special_tokens=adds_special).ids


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("adds_special", [True, False])
@pytest.mark.parametrize(
    "make",
    [lambda: byte_level(True), lambda: without_prefix(sentencepiece_like())],
    ids=["byte-level", "byte-fallback"],
)
def test_pieces_have_the_tokens_of_the_whole(
    make: Any, adds_special: bool, seed: int, tmp_path: Path
) -> None:
    tokenizer, text = tokenizer_of(make(), tmp_path), long_text(seed)
    parts = list(tokenizer.encode_parts(text, add_special_tokens=adds_special))
    assert len(parts) > 4
    whole = encoded_at_once(tokenizer, text, adds_special)
    assert [i for part in parts for i in part] == whole
    assert tokenizer.encode(text, add_special_tokens=adds_special) == whole
    longest = tokenizer.longest_token_chars()
    assert longest is not None and len(text) <= longest * len(whole)


def test_a_vocabulary_that_joins_words_keeps_a_text_whole(tmp_path: Path) -> None:
    content = json.loads(byte_level(False).to_str())
    content["pre_tokenizer"]["use_regex"] = False
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    joined = "e\u0120"  # "e" and the space behind it
    vocab[joined] = max(vocab.values()) + 1
    merges.insert(0, ["e", "\u0120"])
    tokenizer = tokenizer_of(Tokenizer.from_str(json.dumps(content)), tmp_path)
    text = "the dog " * PIECE_CHARS
    (only,) = tokenizer.encode_parts(text, add_special_tokens=False)
    assert list(only) == encoded_at_once(tokenizer, text, False)
    assert vocab[joined] in only


def removes_spaces(backend: Tokenizer) -> Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def strips(backend: Tokenizer) -> Tokenizer:
    backend.normalizer = normalizers.Strip()
    return backend


@pytest.mark.parametrize(
    "make",
    [unigram, lambda: removes_spaces(byte_level(False)), lambda: strips(byte_level(False))],
    ids=["unigram", "drops-spaces", "strips"],
)
def test_no_bound_where_text_may_leave_no_token(make: Any, tmp_path: Path) -> None:
    assert tokenizer_of(make(), tmp_path).longest_token_chars() is None


def test_a_token_that_takes_the_spaces_beside_it_leaves_no_bound(tmp_path: Path) -> None:
    content = json.loads(byte_level(False).to_str())
    content["added_tokens"][0]["rstrip"] = True
    tokenizer = tokenizer_of(Tokenizer.from_str(json.dumps(content)), tmp_path)
    assert len(tokenizer.encode("<|begin|>" + " " * 9999)) == 1
    assert tokenizer.longest_token_chars() is None


def test_composed_characters_are_within_the_bound(tmp_path: Path) -> None:
    backend = byte_level(False)
    backend.normalizer = normalizers.NFC()
    backend.post_processor = processors.ByteLevel()
    tokenizer = tokenizer_of(backend, tmp_path)
    longest = tokenizer.longest_token_chars()
    assert longest is not None
    for text in ("\u03b1\u0313\u0300\u0345" * 50, "U\u0308\u0304" * 50, "\u1112\u1161\u11ab" * 50):
        assert len(text) <= longest * len(tokenizer.encode(text))


def test_other_threads_run_while_a_long_text_is_tokenized(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(byte_level(False), tmp_path)
    text = "x" * (1 << 20)  # no words: one piece
    gaps, ends = [0.0], threading.Event()

    def watch() -> None:
        last_s = time.perf_counter()
        while not ends.wait(0.001):
            now_s = time.perf_counter()
            gaps.append(now_s - last_s)
            last_s = now_s

    thread = threading.Thread(target=watch)
    thread.start()
    started_s = time.perf_counter()
    tokenizer.encode(text)
    spent_s = time.perf_counter() - started_s
    ends.set()
    thread.join()
    assert max(gaps) < 0.5 * spent_s, (max(gaps), spent_s)
