"""Prompts of an exact number of tokens, whose text encodes to the very same ids.

Knows only a tokenizer.json with a byte-level BPE; the words are drawn from its own vocabulary.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

WORD = re.compile("\u0120[a-z]{3,9}")  # a leading space, in the byte-level alphabet


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids and the text that encodes to them."""

    ids: list[int]
    text: str


def whole_words(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of words that stay one token wherever they stand, in order of id."""
    found = (index for token, index in tokenizer.get_vocab().items() if WORD.fullmatch(token))
    return [index for index in sorted(found) if _stays_whole(tokenizer, index)]


def _stays_whole(tokenizer: Tokenizer, index: int) -> bool:
    text = tokenizer.decode([index])
    return list(tokenizer.encode(text + text, add_special_tokens=False).ids) == [index, index]


class PromptMaker:
    """Draws prompts; the same seed, count and length give the same prompts in every process."""

    def __init__(self, model: Path) -> None:
        """Read the tokenizer of a model folder."""
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.words = whole_words(self.tokenizer)

    def make(self, count: int, num_tokens: int, *, seed: int) -> list[Prompt]:
        """Return `count` prompts of exactly `num_tokens` tokens each.

        Raises: ValueError when a text does not encode to its ids.
        """
        rng = random.Random(f"{seed} {num_tokens}")
        return [self._one(rng.choices(self.words, k=num_tokens)) for _ in range(count)]

    def _one(self, ids: list[int]) -> Prompt:
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        if list(self.tokenizer.encode(text, add_special_tokens=False).ids) != ids:
            raise ValueError(f"a prompt does not encode to its own ids: {text[:60]!r}")
        return Prompt(ids=ids, text=text)
