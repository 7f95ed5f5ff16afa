"""Mistral's tokenizer files give the ids that their own rules give: lowest rank merged first."""

from __future__ import annotations

import base64
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail_plugins.mistral import _vocabulary
from dovetail_plugins.tokenizers.hf import HfTokenizer
from dovetail_plugins.tokenizers.mistral import MistralTokenizer
from support.mistral_layout import NUM_SPECIAL, PATTERN, write_tekken

NOT_PAIRS = b"\x0a\x03\x0a\x01a\x12\x02\x18\x01"
NORMALIZES = b"\x0a\x03\x0a\x01a\x12\x02\x18\x02\x1a\x02\x12\x00"
TEXTS = (
    "the thin inn in the hé\n\n  ababab abababa aba",
    "ababaab" * 9 + "  \t x",
    "naïve 東京 \U0001f600 don't 123",
)
PIECES = (
    *(("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("[INST]", 0.0, 3)),
    *((f"<0x{i:02X}>", 0.0, 6) for i in range(256)),
    *(("\u2581t", -0.0, 1), ("he", -1.0, 1), ("\u2581the", -2.0, 1), ("ab", -3.0, 1)),
    *(("aba", -4.0, 1), ("\u2581\u2581", -5.0, 1)),
    *((c, -100.0 - i, 1) for i, c in enumerate("\u2581theabx")),
)


def by_rank(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Return the tokens of a word: as long as two neighbours are a token, the lowest are joined."""
    if word in ranks:
        return [ranks[word]]
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(pairwise(parts))]
        joined = [(rank, i) for rank, i in pairs if rank is not None]
        if not joined:
            return [ranks[part] for part in parts]
        _, i = min(joined)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.mark.parametrize("text", TEXTS)
def test_tekken(tmp_path: Path, text: str) -> None:
    regex = pytest.importorskip("regex")
    content = json.loads(write_tekken(tmp_path, 320).read_text())
    words = [base64.b64decode(entry["token_bytes"]) for entry in content["vocab"]]
    ranks = {word: i + NUM_SPECIAL for i, word in enumerate(words)}
    wanted = [1]
    for piece in regex.findall(PATTERN, text):
        wanted += by_rank(piece.encode(), ranks)
    for made in (MistralTokenizer, HfTokenizer):
        tokenizer = made(None, str(tmp_path))
        assert tokenizer.encode(text) == wanted
        assert tokenizer.decode(wanted) == text
    facts = tokenizer.facts()
    assert (facts.vocab_size, facts.bos_token_id, facts.eos_token_id) == (320, 1, 2)
    assert facts.special_ids == frozenset(range(NUM_SPECIAL))
    assert tokenizer.encode("[INST]", add_special_tokens=False) == [3]
    assert tokenizer.tokens([23]) == ["<SPECIAL_23>"]


def field(number: int, value: Any) -> bytes:
    """Return a field of a protobuf message."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    if isinstance(value, int):
        return bytes([number << 3, value])
    raw = value.encode() if isinstance(value, str) else value
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def write_sentencepiece(folder: Path, kind: int = 2) -> Path:
    pieces = [field(1, text) + field(2, score) + field(3, kind) for text, score, kind in PIECES]
    path = folder / "tokenizer.model.v3"
    falls_back = b"\x98\x02\x01"  # field 35 of the trainer's settings
    settings = field(2, field(3, kind) + falls_back) + field(3, field(4, 0))
    path.write_bytes(b"".join(field(1, piece) for piece in pieces) + settings)
    return path


def test_sentencepiece(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)
    tokenizer = MistralTokenizer(None, str(tmp_path))
    ids = {text: i for i, (text, _, _) in enumerate(PIECES)}

    def pieces(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    assert pieces("the") == [ids["\u2581the"]]
    # "ab" wins over "aba": its score is higher, and what follows has to live with it.
    assert pieces("abab") == [ids["\u2581"], ids["ab"], ids["ab"]]
    assert pieces("é") == [ids["\u2581"], ids["<0xC3>"], ids["<0xA9>"]]
    assert tokenizer.encode("[INST]the") == [1, 3, ids["\u2581the"]]
    assert tokenizer.decode([1, *pieces("the é  x")]) == "the é  x"


def test_sentencepiece_against_the_library(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    path = write_sentencepiece(tmp_path)
    theirs = library.SentencePieceProcessor(model_proto=path.read_bytes())
    own = MistralTokenizer(None, str(tmp_path))
    for text in ("the", "abababa the", "é x"):
        assert own.encode(text, add_special_tokens=False) == theirs.encode(text)


def test_the_newest_file_is_taken(tmp_path: Path) -> None:
    for name in ("tokenizer.model.v1", "tokenizer.model.v3", "tokenizer.model"):
        (tmp_path / name).touch()
    assert _vocabulary.find_file(tmp_path) == tmp_path / "tokenizer.model.v3"
    (tmp_path / "tekken.json").touch()
    assert _vocabulary.find_file(tmp_path) == tmp_path / "tekken.json"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"config": {}}, "config.pattern"),
        ({"vocab": [1, 2]}, "the vocabulary"),
        ({"special_tokens": [{"rank": 99, "token_str": "x"}]}, "special_tokens"),
        ({"special_tokens": [{"rank": i, "token_str": "x"} for i in range(2)]}, "special_tokens"),
        ({"special_tokens": 5}, "special_tokens"),
    ],
)
def test_damage_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    write_tekken(tmp_path, 320, **changes)
    with pytest.raises(ConfigError, match=told) as caught:
        MistralTokenizer(None, str(tmp_path))
    assert "tekken.json" in str(caught.value.where)


@pytest.mark.parametrize("damage", [b"\x0a\x7f", b"\xff" * 30, b"", NOT_PAIRS, NORMALIZES])
def test_a_damaged_model_is_told(tmp_path: Path, damage: bytes) -> None:
    path = write_sentencepiece(tmp_path)
    path.write_bytes(damage if damage else path.read_bytes()[:200])
    with pytest.raises(ConfigError, match=r"tokenizer\.model\.v3"):
        MistralTokenizer(None, str(tmp_path))
