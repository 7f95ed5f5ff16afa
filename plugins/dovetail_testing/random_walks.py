"""Random walks through a constraint: the output of a model that samples at random under the masks.

A walk wanders for a while and then prefers tokens that close open parts, so that most walks end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.interfaces.structured_output import Matcher, Vocabulary

End = Literal["end", "long", "dead", "refused"]
"""How a walk went: to an end token; cut off; nothing was allowed; an allowed token was refused."""
_CLOSERS = frozenset(b'"]}')
_PIECES = (
    '":|": |","|", "|"}|"]|{"|["|{}|[]|""|}}|]]|},|],|:{|:[|,\n|\n |  |\n\n|\\"|\\u|\\\\|\\n|00|000'
    "|12|99|100|-1|1.|.5|0.|e+|E-|1e|true|false|null|tr|nul|ab|abc|bc|aa|xx|foo|bar|name|city|the"
    "| a| b|a b|20|2024|-0|:0|T1|00Z|@a|.c|//|http|://|::|\u00e9|\u00e9t|\u4f60|\u4f60\u597d"
    "|\U0001f600|</|<|>"
)
SPECIAL_WORDS = ("<|begin|>", "<|end|>", "<|call|>")


def small_vocabulary() -> Vocabulary:
    """Return every byte, pieces of JSON and text, and three special tokens; 1 is the end.

    Every part of a character has a token: single bytes cover them all. Text is encoded as the
    longest tokens.
    """
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [piece.encode() for piece in dict.fromkeys(_PIECES.split("|")) if len(piece) > 1]
    size = len(SPECIAL_WORDS) + len(pieces) + 2  # two ids of the model have no token
    ids = {piece: len(SPECIAL_WORDS) + i for i, piece in enumerate(pieces)}
    return Vocabulary(
        tokens=[*(b"" for _ in SPECIAL_WORDS), *pieces, b"", b""],
        special={word: i for i, word in enumerate(SPECIAL_WORDS)},
        special_ids=frozenset(range(len(SPECIAL_WORDS))),
        eos_ids=(1,),
        size=size,
        encode=lambda text: _longest_first(text.encode(), ids),
    )


def _longest_first(data: bytes, ids: Mapping[bytes, int]) -> list[int]:
    """Return the tokens of a text, the longest that fits first; every byte has one."""
    found: list[int] = []
    longest = max(map(len, ids))
    while data:
        piece = next(data[:n] for n in range(longest, 0, -1) if data[:n] in ids)
        found.append(ids[piece])
        data = data[len(piece) :]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The tokens taken, the end token not among them, and how it ended."""

    token_ids: tuple[int, ...]
    end: End


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> np.ndarray:
    """Return whether each token may follow. Shapes: [V] bool"""
    mask = np.zeros(vocabulary.mask_words, dtype=np.uint32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return bits[: vocabulary.size].astype(bool)


class Wanderer:
    """Draws tokens of one vocabulary. `written` gives the text of tokens, special ones included."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokens = vocabulary.tokens
        self._first = np.array([text[0] if text else 256 for text in tokens], dtype=np.int64)
        self._closes = np.array([bool(t) and _CLOSERS.issuperset(t) for t in tokens])
        self._ends = np.zeros(vocabulary.size, dtype=bool)
        self._ends[list(vocabulary.eos_ids)] = True
        self._special = {i: word.encode() for word, i in vocabulary.special.items()}

    def written(self, token_ids: Sequence[int]) -> bytes:
        """Return the text of tokens."""
        tokens = self.vocabulary.tokens
        return b"".join(self._special.get(i) or tokens[i] for i in token_ids)

    def walk(self, matcher: Matcher, chance: random.Random, *, max_tokens: int = 400) -> Walk:
        """Return a walk of up to `max_tokens` tokens from the matcher's state. Mutates: matcher"""
        taken: list[int] = []
        wandering = chance.choice((0, 4, 12, 40))
        is_even = chance.random() < 0.5
        while len(taken) < max_tokens:
            may = allowed(matcher, self.vocabulary)
            if not may.any():
                return Walk(token_ids=tuple(taken), end="dead")
            token_id = self._draw(may, chance, is_done=len(taken) >= wandering, is_even=is_even)
            if token_id in self.vocabulary.eos_ids:
                return Walk(token_ids=tuple(taken), end="end")
            if not matcher.accept(token_id):
                return Walk(token_ids=(*taken, token_id), end="refused")
            taken.append(token_id)
        return Walk(token_ids=tuple(taken), end="long")

    def _draw(self, may: np.ndarray, chance: random.Random, *, is_done: bool, is_even: bool) -> int:
        """Return an allowed token; with `is_even` each first byte is as likely."""
        if is_done and chance.random() < 0.8:
            for preferred in (self._ends, self._closes):
                ids = np.flatnonzero(may & preferred)
                if len(ids):
                    return int(ids[chance.randrange(len(ids))])
        ids = np.flatnonzero(may)
        if is_even:
            firsts = self._first[ids]
            kinds = np.unique(firsts)
            ids = ids[firsts == kinds[chance.randrange(len(kinds))]]
        return int(ids[chance.randrange(len(ids))])


def follows(matcher: Matcher, vocabulary: Vocabulary, text: bytes) -> bool:
    """Return whether a constraint takes a whole text, byte by byte, and may end there.

    The vocabulary has a token for every byte. Mutates: matcher
    """
    single = {text[0]: i for i, text in enumerate(vocabulary.tokens) if len(text) == 1}
    if not all(matcher.accept(single[byte]) for byte in text):
        return False
    return bool(allowed(matcher, vocabulary)[list(vocabulary.eos_ids)].any())
