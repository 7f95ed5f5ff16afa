"""Properties of a tokenizer.json that need no text: the longest stretch one token covers, and
whether a text may be cut at the space between two words.

Only byte-level and byte-fallback BPE are supported: there every character leaves a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPACE_MARK = "\u2581"
BYTE_SPACE = "\u0120"
LETTERS = (r"[^\W\d_]", "[A-Za-z]")
"""Letters between which a text may be cut: all if that is safe, else ASCII ones."""
PIECE_CHARS = 1 << 16

KEEPS_ALL = {"ByteLevel", "Split", "Digits", "Metaspace", "Punctuation", "UnicodeScripts"}
"""Pre-tokenizers that drop nothing."""

COMPOSED = 2
"""NFC makes one character of several, but never one of more than this times its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerShape:
    """See the module. `longest_token_chars` None: a token may cover any stretch of text. `cut`
    matches the spaces at which a text may be cut; None: a text must stay whole."""

    longest_token_chars: int | None = None
    cut: re.Pattern[str] | None = None


def shape_of(content: Mapping[str, Any], byte_of: Mapping[str, int]) -> TokenizerShape:
    """Return the shape of a tokenizer.json; `byte_of` maps byte-level characters to bytes."""
    model = content["model"]
    normalizers = list(_parts(content.get("normalizer"), "normalizers"))
    splitters = list(_parts(content.get("pre_tokenizer"), "pretokenizers"))
    is_byte_level = any(part["type"] == "ByteLevel" for part in splitters)
    vocab: Sequence[str] = list(model.get("vocab") or ())
    added: Sequence[Mapping[str, Any]] = content.get("added_tokens") or ()
    keeps_all = (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and all(_keeps_all(part) for part in splitters)
        and _has_all_bytes(vocab, byte_of, is_byte_level, bool(model.get("byte_fallback")))
    )
    if not keeps_all:
        return TokenizerShape()
    high = _high(byte_of) if is_byte_level else ""
    cuts = (_cut(letters, vocab, added, high) for letters in LETTERS)
    is_local = all(part["type"] in ("NFC", "NFKC") or _marks_spaces(part) for part in normalizers)
    return TokenizerShape(
        longest_token_chars=_longest(vocab, added, normalizers),
        cut=next(filter(None, cuts), None) if is_local else None,
    )


def pieces(text: str, cut: re.Pattern[str]) -> Iterator[str]:
    """Yield a text in pieces cut between words; what has no words stays whole."""
    start = 0
    while found := cut.search(text, start + PIECE_CHARS):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def _parts(part: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a sequence, or the one there is."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for inner in part[name]:
        yield from _parts(inner, name)


def _keeps_all(splitter: Mapping[str, Any]) -> bool:
    return splitter["type"] in KEEPS_ALL and splitter.get("behavior") != "Removed"


def _has_all_bytes(
    vocab: Sequence[str], byte_of: Mapping[str, int], is_byte_level: bool, falls_back: bool
) -> bool:
    """Return whether no byte of a text can be lost for want of a token."""
    known = set(vocab)
    if is_byte_level:
        return known.issuperset(byte_of)
    return falls_back and all(f"<0x{byte:02X}>" in known for byte in range(256))


def _longest(
    vocab: Sequence[str], added: Sequence[Mapping[str, Any]], normalizers: Sequence[Any]
) -> int | None:
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None  # such a token consumes all adjacent white space
    if not all(part["type"] in ("NFC", "Prepend") or _marks_spaces(part) for part in normalizers):
        return None
    composes = any(part["type"] == "NFC" for part in normalizers)
    longest = max(map(len, [*vocab, *(token["content"] for token in added)]))
    return longest * (COMPOSED if composes else 1)


def _cut(
    letters: str, vocab: Sequence[str], added: Sequence[Mapping[str, Any]], high: str
) -> re.Pattern[str] | None:
    """Return the pattern of a space between these letters, if tokens never cross it; None if they
    may. `high`: byte-level characters that may end a letter."""
    cut = re.compile(f"(?<={letters}) (?={letters})")
    if any(cut.search(token["content"]) or token.get("rstrip") for token in added):
        return None
    if high:
        joined = re.compile(f"[A-Za-z{high if letters == LETTERS[0] else ''}]{BYTE_SPACE}")
    else:
        joined = re.compile(letters + SPACE_MARK)
    return None if any(joined.search(token) for token in vocab) else cut


def _marks_spaces(normalizer: Mapping[str, Any]) -> bool:
    return normalizer["type"] == "Replace" and normalizer.get("pattern") == {"String": " "}


def _high(byte_of: Mapping[str, int]) -> str:
    """Return the byte-level characters of bytes beyond ASCII, as in a class of characters."""
    return "".join(re.escape(char) for char, byte in byte_of.items() if byte >= 0x80)
