"""Prompts that begin like earlier ones: their tokens are those of the whole text, and only what is
new in them is tokenized."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from dovetail_plugins.tokenizers import _known_pieces
from dovetail_plugins.tokenizers._fast import SHORT_CHARS, FastTokenizer
from dovetail_plugins.tokenizers._known_pieces import KnownPieces
from support.samples import sample_of
from support.small_tokenizers import byte_level, sentencepiece_like, unigram

WORDS = ["the", "dog", "Grüße", "世界", "42", "don't", "e\u0301lan", '{"a": 1}', "<|", "|>", "<"]
BREAKS = [" ", " ", " ", "  ", "\n", "\n\n", "\t", ""]
CONTROL = ["<|begin|>", "<|end|>", "<s>", "</s>", "<unk>"]


def with_flags(backend: Tokenizer, **flags: bool) -> Tokenizer:
    """Return a tokenizer whose "<|end|>" has these flags, and with a token that begins like it."""
    content = json.loads(backend.to_str())
    (end,) = [token for token in content["added_tokens"] if token["content"] == "<|end|>"]
    end |= flags
    backend = Tokenizer.from_str(json.dumps(content))
    backend.add_special_tokens(["<|end|>42", "<tool_call>"])
    return backend


def overlapping(backend: Tokenizer) -> Tokenizer:
    """Return a tokenizer with a token that others may begin within, so that no text is cut."""
    backend.add_special_tokens(["<|end|><|end|>"])
    return backend


def with_parts(backend: Tokenizer, **parts: Any) -> Tokenizer:
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def word_pieces() -> Tokenizer:
    """Return a tokenizer that drops spaces and lowers letters, with tokens of its own brackets."""
    names = ["[UNK]", "[CLS]", "[SEP]", *CONTROL]
    pieces = [*names, "the", "dog", "##s", "gru", "##ße", *"abcdefghijklmnopqrstuvwxyz42<|>"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    backend.add_special_tokens(names)
    return backend


MADE: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": lambda: byte_level(False),
    "byte-level-with-begin": lambda: byte_level(True),
    "byte-fallback": sentencepiece_like,
    "unigram": unigram,
    "unigram-first": lambda: with_parts(
        unigram(), pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")
    ),
    "nfc": lambda: with_parts(byte_level(False), normalizer=normalizers.NFC()),
    "adds-space": lambda: with_parts(
        byte_level(False), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "word-pieces": word_pieces,
    "overlapping": lambda: overlapping(byte_level(False)),
    "takes-left": lambda: with_flags(byte_level(False), lstrip=True),
    "takes-right": lambda: with_flags(byte_level(False), rstrip=True),
    "single-word": lambda: with_flags(byte_level(False), single_word=True),
    "normalized": lambda: with_flags(byte_level(False), normalized=True),
}


def tokenizer_of(name: str, folder: Path) -> FastTokenizer:
    (folder / "tokenizer.json").write_text(MADE[name]().to_str())
    return FastTokenizer(folder)


def some_text(rng: random.Random, size: int) -> str:
    pieces = []
    while size > 0:
        words = CONTROL if rng.random() < 0.1 else WORDS
        pieces += [rng.choice(words), rng.choice(BREAKS)]
        size -= len(pieces[-2]) + len(pieces[-1])
    return "".join(pieces)


def conversation(seed: int) -> list[str]:
    """Return prompts of which each begins like an earlier one, or is changed at one place."""
    rng = random.Random(seed)
    texts = [some_text(rng, 2 * SHORT_CHARS)]
    for _ in range(6):
        last = texts[-1]
        at = rng.randrange(len(last))
        texts.append(last + some_text(rng, rng.choice((1, 40, 400))))
        texts.append(last[:at] + some_text(rng, 20) + last[at:])
    return texts


def plain_words(rng: random.Random, text: str) -> list[tuple[int, int]]:
    """Return the places of some control words, which clients wrote."""
    found = []
    for word in CONTROL:
        at = text.find(word)
        while at >= 0:
            if rng.random() < 0.3:
                found.append((at, at + len(word)))
            at = text.find(word, at + len(word))
    return sorted(found)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(sample_of(2, 1)))
@pytest.mark.parametrize("name", MADE)
def test_the_tokens_are_those_of_the_whole_text(name: str, seed: int, tmp_path: Path) -> None:
    tokenizer, rng = tokenizer_of(name, tmp_path), random.Random(seed)
    assert (tokenizer._known_pieces is None) == (name == "overlapping")
    for text in conversation(seed):
        for adds in (True, False):
            whole = tokenizer._backend.encode(text, add_special_tokens=adds).ids
            assert tokenizer.encode(text, add_special_tokens=adds) == whole
        words = plain_words(rng, text)
        expected = tokenizer._plain_words.encode(text, words)
        assert tokenizer.encode_with_plain(text, words, False) == expected


class Counted:
    """Encodes characters, and counts them."""

    def __init__(self) -> None:
        self.num_chars = 0

    def __call__(self, piece: str, plain: Sequence[tuple[int, int]]) -> list[list[int]]:
        self.num_chars += len(piece)
        return [[ord(char) for char in piece]]


def test_a_second_turn_tokenizes_only_its_new_messages() -> None:
    counted = Counted()
    pieces = KnownPieces(counted, ["<|im_start|>", "<|im_end|>"])
    first = "<|im_start|>system\n" + "tools " * 9000 + "<|im_end|>\n<|im_start|>assistant\n"
    second = first + "hello<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    for text in (first, second):
        before = counted.num_chars
        ids = [token_id for part in pieces.parts(text) for token_id in part]
        assert ids == [ord(char) for char in text]
    assert counted.num_chars - before < 100


def test_old_pieces_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_known_pieces, "MAX_CHARS", 1000)
    counted = Counted()
    pieces = KnownPieces(counted, ["<s>"])
    texts = [f"<s>{number}" + "x" * 300 for number in range(9)]
    for text in [*texts, texts[0], texts[-1]]:
        list(pieces.parts(text))
    assert pieces._num_chars == sum(len(piece) for piece, _ in pieces._known) <= 1000
    assert counted.num_chars == sum(map(len, [*texts, texts[0]]))
