"""Tokenizers in GGUF files: the ids are those of the tokenizer.json that the file was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail_plugins.gguf.vocabulary.read import merges_of
from dovetail_plugins.gguf.vocabulary.splits import KINDS
from dovetail_plugins.tokenizers.gguf import GgufTokenizer
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf

gguf = pytest.importorskip("gguf")

TEXTS = (
    "",
    "the dog doesn't mind, 12345 times",
    " two  spaces\n\n\tand tabs ",
    "café naïve \u4f60\u597d \U0001f600",
    "<|begin|>hi<|end|>",
    "x = {'a': [1.5e-3]}\r\n",
)


def loaded(path: Path) -> GgufTokenizer:
    selection = registry.choose("tokenizer", "auto", query=str(path))
    assert selection.name == "gguf"
    return GgufTokenizer(GgufTokenizer.Options(), str(path))


def test_byte_pairs(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "m.gguf")
    own, right = loaded(tmp_path / "m.gguf"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert own.encode(text, add_special_tokens=False) == (
            right.encode(text, add_special_tokens=False).ids
        )
        ids = right.encode(text, add_special_tokens=False).ids
        assert own.decode(ids) == right.decode(ids)
    hf = registry.load("tokenizer", "hf")
    facts, wanted = own.facts(), hf(hf.Options(), str(folder)).facts()
    for name in ("vocab_size", "bos_token_id", "eos_token_id", "special_ids", "chat_template"):
        assert getattr(facts, name) == getattr(wanted, name), name


def piece_file(path: Path, *, has_space: bool) -> Tokenizer:
    """Write a file with SentencePiece's pieces; return the tokenizer that transformers would make
    of the same model."""
    from transformers.convert_slow_tokenizer import generate_merges

    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    text = (Path(__file__).read_text() + Path(json.__file__).read_text()).splitlines()
    trained.train_from_iterator(text, trainers.BpeTrainer(vocab_size=600, show_progress=False))
    ranked = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    special = ["<unk>", "<s>", "</s>", "<tool>"]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [token for token, _ in ranked]
    tokens = [*special, *single, *pieces]
    scores = [0.0] * (len(special) + 256) + [float(-n) for n in range(len(pieces))]
    kinds = [2, 3, 3, 4, *[6] * 256, *[1] * len(pieces)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(has_space)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = generate_merges(vocabulary, dict(zip(tokens, scores, strict=True)))
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True,
                                byte_fallback=True))  # fmt: skip
    steps: list[Any] = [normalizers.Prepend("\u2581")] if has_space else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    ends: list[Any] = [decoders.Strip(" ", 1, 0)] if has_space else []
    replace = decoders.Replace("\u2581", " ")
    made.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), *ends])
    made.add_special_tokens(special[:3])
    made.add_tokens([AddedToken(special[3], normalized=False)])
    return made


@pytest.mark.parametrize("has_space", [True, False])
def test_pieces(tmp_path: Path, has_space: bool) -> None:
    right = piece_file(tmp_path / "m.gguf", has_space=has_space)
    own = loaded(tmp_path / "m.gguf")
    for text in (*TEXTS, "a <tool> call</s> and more", "\u1234\x00"):
        ids = right.encode(text, add_special_tokens=False).ids
        assert own.encode(text, add_special_tokens=False) == ids
        assert own.encode(text) == [1, *ids]
        assert own.decode(ids) == right.decode(ids)
        stream = own.stream([])
        assert "".join(map(stream.push, ids)) + stream.flush() == own.decode(ids)


def test_merges_go_by_score_then_length() -> None:
    vocabulary = {token: i for i, token in enumerate(("a", "b", "ab", "aba", "ba"))}
    scores = dict(zip(vocabulary, (0, 0, -2, -1, -3), strict=True))
    assert merges_of(vocabulary, scores) == [("ab", "a"), ("a", "ba"), ("a", "b"), ("b", "a")]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("llama-bpe", ["It", "'S", " ", " ", "123", "45", " x", "!\n\n", "y"]),
        ("qwen2", ["It", "'S", " ", " ", "1", "2", "3", "4", "5", " x", "!\n\n", "y"]),
        ("gpt-2", ["It", "'", "S", " ", " 12345", " x", "!", "\n", "\n", "y"]),
    ],
)
def test_how_words_are_cut(kind: str, words: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in KINDS[kind].cuts]
    found = pre_tokenizers.Sequence(cuts).pre_tokenize_str("It'S  12345 x!\n\ny")
    assert [word for word, _ in found] == words


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_every_character(kind: str) -> None:
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in KINDS[kind].cuts]
    text = "".join(TEXTS)
    found = pre_tokenizers.Sequence(cuts).pre_tokenize_str(text)
    assert "".join(word for word, _ in found) == text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "no vocabulary"),
        ({"model": "rwkv"}, '"rwkv" are not read'),
        ({"model": "t5"}, "scores"),
        ({"model": "gpt2", "pre": "unheard-of"}, '"unheard-of" is not known'),
        ({"model": "llama"}, "scores"),
    ],
)
def test_vocabularies_that_are_not_read(
    tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    if settings:
        writer.add_token_list(["a", "b"])
    for name, value in settings.items():
        writer.add_string(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=told):
        loaded(tmp_path / "m.gguf")
