"""Sentences of a text: the pieces in which it is spoken, so that the first is soon heard.

A piece ends after a sentence, unless that is very short ("Dr."); a long sentence is cut after a
clause or between words. Joined, the pieces are the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MIN_CHARS = 24
"""A shorter piece is joined with the next, so that few abbreviations end one."""
MAX_CHARS = 160
"""The engine answers nothing while it speaks a piece, so that must not take long."""
_SENTENCE = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*|\s*\n\s*""")
_CLAUSE = re.compile(r"[,;:–—]\s+|[、，；：]")
_WORD = re.compile(r"\s+")


def sentences(text: str, max_chars: int = MAX_CHARS) -> list[str]:
    """Return the pieces of a text."""
    return [piece for one in _parts(text, _SENTENCE, MIN_CHARS) for piece in _short(one, max_chars)]


def _short(piece: str, max_chars: int) -> Iterator[str]:
    """Yield a piece in parts of at most `max_chars`."""
    while len(piece) > max_chars:
        start = piece[:max_chars]
        ends = (_last_end(start, pattern) for pattern in (_CLAUSE, _WORD))
        end = next((end for end in ends if end), max_chars)
        yield piece[:end]
        piece = piece[end:]
    yield piece


def _last_end(text: str, pattern: re.Pattern[str]) -> int:
    """Return where the last match in the second half of a text ends, 0 if there is none."""
    return max((found.end() for found in pattern.finditer(text, len(text) // 2)), default=0)


def _parts(text: str, pattern: re.Pattern[str], min_chars: int) -> Iterator[str]:
    """Yield the parts of a text, each of at least `min_chars` characters but for the last."""
    start = 0
    for found in pattern.finditer(text):
        if found.end() - start >= min_chars:
            yield text[start : found.end()]
            start = found.end()
    if start < len(text):
        yield text[start:]
