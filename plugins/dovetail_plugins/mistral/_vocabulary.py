"""Mistral's tokenizer files as plain vocabularies: tekken.json, and sentencepiece models.

Formats: https://github.com/mistralai/mistral-common (tokenizers/tekken.py) and
https://github.com/google/sentencepiece (src/sentencepiece_model.proto). Builds no tokenizer.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError

TEKKEN = "tekken.json"
_SENTENCEPIECE = re.compile(r"tokenizer\.model\.v(\d+)(m\d+)?")
MAX_TOKENS = 2**20
MAX_FILE_BYTES = 512 * 2**20

DEFAULT_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
"""The first special tokens of tekken files that list none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tekken:
    """Special tokens take the ids from 0 on, the vocabulary's bytes the following ids, by rank."""

    version: str
    pattern: str
    special: tuple[str, ...]
    words: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePiece:
    """One piece of a sentencepiece model; `kind` is 1 word, 2 unknown, 3 control, 4 user's own,
    6 byte."""

    text: str
    score: float
    kind: int


def find_file(folder: Path) -> Path | None:
    """Return the tokenizer file in Mistral's own layout, tekken.json first, else the newest."""
    if (folder / TEKKEN).is_file():
        return folder / TEKKEN
    if not folder.is_dir():
        return None
    named = {path: _SENTENCEPIECE.fullmatch(path.name) for path in sorted(folder.iterdir())}
    files = [(int(match[1]), path) for path, match in named.items() if match]
    return max(files)[1] if files else None


def version_of(path: Path) -> str:
    """Return the version that a sentencepiece file's name states, such as "v3"."""
    match = _SENTENCEPIECE.fullmatch(path.name)
    return f"v{match[1]}" if match else "v1"


def read_tekken(path: Path) -> Tekken:
    """Return the vocabulary. Raises: ConfigError naming the entry that is wrong."""
    _check_size(path)
    content = read_json(path)
    settings = content.get("config")
    settings = settings if isinstance(settings, dict) else {}
    pattern = settings.get("pattern")
    if not isinstance(pattern, str):
        raise _malformed(path, "config.pattern is missing")
    size = _count(path, settings, "default_vocab_size")
    num_special = _count(path, settings, "default_num_special_tokens")
    entries = content.get("vocab")
    if not isinstance(entries, list) or not 0 <= size - num_special <= len(entries):
        raise _malformed(path, f"the vocabulary is not {size} - {num_special} entries")
    words = tuple(_word(path, i, entry) for i, entry in enumerate(entries[: size - num_special]))
    if len(set(words)) != len(words):
        raise _malformed(path, "two entries of the vocabulary have the same bytes")
    return Tekken(
        version=str(settings.get("version", "v3")),
        pattern=pattern,
        special=_special(path, content.get("special_tokens"), num_special),
        words=words,
    )


def read_pieces(path: Path) -> tuple[SentencePiece, ...]:
    """Return the pieces of a sentencepiece model of the BPE kind. Raises: ConfigError."""
    _check_size(path)
    content = path.read_bytes()
    try:
        fields = list(_fields(content))
        pieces = tuple(_piece(value) for number, value in fields if number == 1)
        trainers = [dict(_fields(value)) for number, value in fields if number == 2]
    except (IndexError, ValueError, TypeError) as error:
        raise _malformed(path, f"it is not a sentencepiece model: {error}") from error
    if not pieces:
        raise _malformed(path, "it holds no pieces")
    _check_normalizer(path, [dict(_fields(value)) for number, value in fields if number == 3])
    if not trainers or trainers[0].get(3, 1) != 2:
        raise _malformed(path, "it is not a byte-pair (BPE) model")
    return pieces


def _check_normalizer(path: Path, settings: list[dict[int, Any]]) -> None:
    """Raises: ConfigError unless text is unchanged, except for one space before it.

    Fields: 2 a table of characters, 3 whether a space is added, 4 whether spaces are dropped.
    """
    found = settings[0] if settings else {}
    if found.get(2) or not found.get(3, 1) or found.get(4, 1):
        raise _malformed(path, "its text normalization is not supported")


def _special(path: Path, listed: Any, count: int) -> tuple[str, ...]:
    """Return `count` special tokens, those without a name filled up."""
    if listed is None:
        names = dict(enumerate(DEFAULT_SPECIAL))
    else:
        try:
            names = {int(entry["rank"]): str(entry["token_str"]) for entry in listed}
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(path, "special_tokens has an entry without rank and text") from error
    texts = tuple(names.get(i, f"<SPECIAL_{i}>") for i in range(count))
    if (max(names, default=-1) >= count and listed is not None) or len(set(texts)) != count:
        raise _malformed(path, f"special_tokens are not {count} different ones")
    return texts


def _word(path: Path, rank: int, entry: Any) -> bytes:
    try:
        is_in_order = entry["rank"] == rank
        word = base64.b64decode(entry["token_bytes"], validate=True)
    except (KeyError, TypeError, binascii.Error, ValueError) as error:
        raise _malformed(path, f"entry {rank} of the vocabulary has no bytes") from error
    if not is_in_order or not word or (rank < 256 and len(word) != 1):
        raise _malformed(path, f"entry {rank} of the vocabulary is out of order")
    return word


def _count(path: Path, settings: dict[str, Any], key: str) -> int:
    value = settings.get(key)
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise _malformed(path, f"config.{key} is missing or no count")
    return value


def _piece(content: Any) -> SentencePiece:
    fields = dict(_fields(content))
    score = fields.get(2, 0.0)
    kind = fields.get(3, 1)
    if not isinstance(score, float) or not isinstance(kind, int):
        raise ValueError("a piece without score or kind")
    return SentencePiece(text=bytes(fields[1]).decode(), score=score, kind=kind)


def _fields(content: bytes) -> Any:
    """Yield (number, value) of a protobuf message. Source: protobuf.dev/programming-guides/encoding

    Values: int (kind 0), float (kind 5), bytes (kind 2). Raises: IndexError, ValueError.
    """
    import struct

    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        width = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            width, at = _varint(content, at)
        if width is None or at + width > len(content):
            raise ValueError(f"a field of kind {kind} is cut")
        raw = content[at : at + width]
        yield key >> 3, struct.unpack("<f", raw)[0] if kind == 5 else raw
        at += width


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _check_size(path: Path) -> None:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise _malformed(path, f"it is larger than {MAX_FILE_BYTES >> 20} MiB")


def _malformed(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot be read as a tokenizer: {reason}", where=str(path), fix="download the file again."
    )
