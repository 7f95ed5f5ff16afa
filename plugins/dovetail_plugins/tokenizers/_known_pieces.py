"""KnownPieces: the tokens of earlier texts' pieces, so that of a conversation's next prompt only
what is new is tokenized.

A text is cut before control tokens (`<|im_start|>`). The library splits a text there before all
else, so the tokens of the pieces are those of the whole text.
"""

from __future__ import annotations

import itertools
import re
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from tokenizers import AddedToken

Span = tuple[int, int]
Encode = Callable[[str, Sequence[Span]], Iterable[Sequence[int]]]

MAX_CHARS = 1 << 21
"""The characters of all pieces whose tokens are stored: those of a dozen long conversations."""
MAX_STARTS = 64
"""How many control tokens are looked for: every one of them is tried at each place."""
PART_CHARS = 1 << 16
"""After this many new characters a part of the tokens is passed on."""


def starts_of(tokens: Sequence[AddedToken], preferred: str = "") -> tuple[str, ...]:
    """Return the added tokens before which any text may be cut, those within `preferred` first.

    Such a token is found in a text wherever it is written: it is taken from the text as it is, and
    its first character begins a token wherever it is part of one.
    """
    inner = {char for token in tokens for char in token.content[1:]}
    takes_left = tuple(token.content for token in tokens if token.lstrip)

    def is_safe(token: AddedToken) -> bool:
        text = token.content
        if not text or text[0] in inner or text[0].isspace() or token.normalized:
            return False
        return not token.single_word and not any(one.startswith(text) for one in takes_left)

    found = sorted(filter(is_safe, tokens), key=lambda token: token.content not in preferred)
    return tuple(token.content for token in found[:MAX_STARTS])


class KnownPieces:
    """The latest pieces of one tokenizer, by their text. `encode` gives the tokens of a piece with
    the words at the given spans as ordinary text. Used by several threads."""

    def __init__(self, encode: Encode, starts: Iterable[str]) -> None:
        self._encode = encode
        ordered = sorted(starts, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self._known: OrderedDict[tuple[str, tuple[Span, ...]], array[int]] = OrderedDict()
        self._num_chars = 0
        self._lock = threading.Lock()

    def parts(self, text: str, plain: Sequence[Span] = ()) -> Iterator[Sequence[int]]:
        """Yield the tokens of a text in parts, each with a bounded amount of new text. Mutates:
        self"""
        part, num_new = array("I"), 0
        for piece, words in self._pieces(text, plain):
            known = self._find(piece, words)
            if known is not None:
                part.extend(known)
                continue
            ids = array("I")
            for found in self._encode(piece, words):
                ids.extend(found)
                part.extend(found)
                num_new += len(piece)
                if num_new > PART_CHARS:
                    yield part
                    part, num_new = array("I"), 0
            self._keep(piece, words, ids)
        yield part

    def _pieces(self, text: str, plain: Sequence[Span]) -> Iterator[tuple[str, tuple[Span, ...]]]:
        """Yield the pieces of a text, each with the places of ordinary words within it."""
        end = len(text)
        cuts, at = [], 0
        for start, behind in [*plain, (end, end)]:
            cuts += [found.start() for found in self._start.finditer(text, at, start)]
            at = behind
        first = 0
        for start, behind in itertools.pairwise([0, *(cut for cut in cuts if cut), end]):
            last = bisect_left(plain, (behind, 0), first)
            yield text[start:behind], tuple((a - start, b - start) for a, b in plain[first:last])
            first = last

    def _find(self, piece: str, words: tuple[Span, ...]) -> array[int] | None:
        with self._lock:
            known = self._known.get((piece, words))
            if known is not None:
                self._known.move_to_end((piece, words))
            return known

    def _keep(self, piece: str, words: tuple[Span, ...], ids: array[int]) -> None:
        """Keep the tokens of a piece, and of no more pieces than MAX_CHARS. Mutates: self"""
        with self._lock:
            if (piece, words) not in self._known:
                self._num_chars += len(piece)
            self._known[piece, words] = ids
            while self._num_chars > MAX_CHARS:
                (old, _), _ = self._known.popitem(last=False)
                self._num_chars -= len(old)
