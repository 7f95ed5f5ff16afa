"""Vocabularies of encoders in GGUF files: the ids are those of the `tokenizers` library, alone and
in pairs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dovetail_plugins.tokenizers.gguf import GgufTokenizer

gguf = pytest.importorskip("gguf")

TEXTS = (
    "",
    "the dog, the House",
    "  two  spaces \n and a line\t",
    "Caf\u00e9 na\u00efve \u4e2d\u6587 \uac00",
    "unheard\u2603of <mask> and </s> in text",
    "[MASK] the [UNK] [unused1]",
)
NORMAL, UNKNOWN, CONTROL, USER, UNUSED = 1, 2, 3, 4, 5


def loaded(path: Path) -> GgufTokenizer:
    return GgufTokenizer(GgufTokenizer.Options(), str(path))


def write(path: Path, model: str, tokens: list[str], kinds: list[int], **settings: Any) -> None:
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def assert_same(own: GgufTokenizer, right: Tokenizer) -> None:
    """The same ids of texts, and the same special tokens and types of pairs."""
    for text in TEXTS:
        assert own.encode(text) == right.encode(text).ids, text
        plain = right.encode(text, add_special_tokens=False).ids
        assert own.encode(text, add_special_tokens=False) == plain
    frame, pair = own.pair_frame(), right.encode("the", "dog")
    first = right.encode("the", add_special_tokens=False).ids
    second = right.encode("dog", add_special_tokens=False).ids
    assert [*frame.before, *first, *frame.between, *second, *frame.after] == pair.ids
    if 1 in pair.type_ids:
        assert frame.num_between_first is not None
        assert len(frame.before) + len(first) + frame.num_between_first == pair.type_ids.index(1)


WORDS = ["the", "dog", "house", "Dog", "House", "The", "caf", "na", ",", "two", "and", "\u00e9"]
PIECES = ["##e", "##s", "##\u00e9", "##i", "##ve", "##\u00efve", "##o", "##d", "##k"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("is_cased", [False, True])
@pytest.mark.parametrize("marks_brackets", [False, True])
def test_word_pieces(tmp_path: Path, is_cased: bool, marks_brackets: bool) -> None:
    """Words that begin are marked, by today's converters also those in brackets."""
    words = [w for w in WORDS if is_cased or w == w.lower()]
    tokens = [*SPECIAL, "[unused1]", *words, *PIECES, *"abcdefghijklmnopqrstuvwxyz[]"]
    right = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    right.normalizer = normalizers.BertNormalizer(lowercase=not is_cased)
    right.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    right.add_special_tokens(SPECIAL)
    right.add_tokens([AddedToken("unheard", normalized=False)])
    ids = [(name, tokens.index(name)) for name in ("[CLS]", "[SEP]")]
    right.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )

    def marked(text: str) -> str:
        if text in SPECIAL or (text[0] == "[" and text[-1] == "]" and not marks_brackets):
            return text
        return text[2:] if text.startswith("##") else f"\u2581{text}"

    kinds = [CONTROL if t in SPECIAL else NORMAL for t in tokens]
    write(
        tmp_path / "m.gguf",
        "bert",
        [*map(marked, tokens), "\u2581unheard"],
        [*kinds, USER],
        unk_token_id=1,
        sep_token_id=3,
        bos_token_id=2,
        mask_token_id=4,
    )
    assert_same(loaded(tmp_path / "m.gguf"), right)


def charsmap(byte: int, text: bytes) -> bytes:
    """Return a precompiled map of one byte to a text: a trie of two steps, and the text.

    Format: Darts, https://github.com/s-yata/darts-clone, as SentencePiece stores it.
    """
    units = [0] * 1024
    units[0] = 256 << 10
    units[256 ^ byte] = byte | 1 << 8 | 512 << 10
    units[256 ^ byte ^ 512] = 1 << 31
    trie = struct.pack("<1024I", *units)
    return struct.pack("<I", len(trie)) + trie + text + b"\0"


@pytest.mark.parametrize("kind", ["xlm-roberta", "t5", "no-charsmap"])
def test_unigrams(tmp_path: Path, kind: str) -> None:
    special = ["<s>", "<pad>", "</s>", "<unk>"] if kind != "t5" else ["<pad>", "</s>", "<unk>"]
    right = Tokenizer(models.Unigram())
    steps: list[Any] = []
    if kind != "no-charsmap":
        steps.append(normalizers.Precompiled(charsmap(ord("\n"), b" ")))
    right.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    )
    right.pre_tokenizer, right.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    right.train_from_iterator(Path(__file__).read_text().splitlines(), trainer)
    right.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    count = max(right.get_vocab().values()) + 1
    tokens = [right.id_to_token(i) or f"[PAD{i}]" for i in range(count)]
    scores = {token: score for token, score in read_scores(right)}
    at = {name: tokens.index(name) for name in (*special, "<mask>")}
    more: dict[str, Any] = {}
    if kind == "t5":
        right.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", at["</s>"])]
        )
    else:
        ends = [("<s>", at["<s>"]), ("</s>", at["</s>"])]
        right.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
        )
        more |= {"bos_token_id": at["<s>"], "add_bos_token": True, "add_eos_token": True}
    if kind != "no-charsmap":
        more["precompiled_charsmap"] = charsmap(ord("\n"), b" ")
    write(
        tmp_path / "m.gguf",
        "t5",
        tokens,
        [UNKNOWN if t == "<unk>" else CONTROL if t in at else NORMAL for t in tokens],
        token_scores=[float(scores.get(token, 0.0)) for token in tokens],
        eos_token_id=at["</s>"],
        unk_token_id=at["<unk>"],
        mask_token_id=at["<mask>"],
        add_space_prefix=True,
        remove_extra_whitespaces=True,
        **more,
    )
    own = loaded(tmp_path / "m.gguf")
    assert_same(own, right)
    ids = right.encode("the tokens of a text", add_special_tokens=False).ids
    assert own.decode(ids) == right.decode(ids) == "the tokens of a text"


def read_scores(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["vocab"]]


@pytest.mark.parametrize("has_separator", [True, False, None])
def test_pairs_of_byte_level_vocabularies(tmp_path: Path, has_separator: bool | None) -> None:
    """RoBERTa puts two tokens between texts, ModernBERT one; the file says which, or its kind."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["th", "the"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    right = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e")]))
    right.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    right.add_special_tokens(tokens[:4])
    middle = "</s>" if has_separator is False else "</s> </s>"
    right.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=f"<s> $A {middle} $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    more = {} if has_separator is None else {"add_sep_token": has_separator}
    write(
        tmp_path / "m.gguf",
        "gpt2",
        tokens,
        [CONTROL] * 4 + [NORMAL] * (len(tokens) - 4),
        tokenizer_pre="roberta-bpe",
        token_merges=["t h", "th e"],
        bos_token_id=0,
        eos_token_id=2,
        add_bos_token=True,
        add_eos_token=True,
        **more,
    )
    assert_same(loaded(tmp_path / "m.gguf"), right)
