"""PlainWords: tokenizes a text in which some control words are ordinary text.

A text is split at its added tokens into stretches. A stretch with such a word is tokenized by the
same tokenizer without added tokens, so it is treated as ordinary text; everything else goes through
the tokenizer itself. They share one vocabulary, so the extra tokenizers are small.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

Span = tuple[int, int]


class PlainWords:
    """For one tokenizer of the `tokenizers` library. Made at the first such text."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        tokens: list[AddedToken] = list(backend.get_added_tokens_decoder().values())
        self._tokens = {token.content: token for token in tokens if not token.normalized}
        ordered = sorted(self._tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, ordered)) or "(?!)")

    def encode(self, text: str, plain: Sequence[Span]) -> list[int]:
        """Return the token ids of a text, without those put around every text."""
        ids: list[int] = []
        done = 0
        for start, end in self._stretches(text, plain):
            if done < start:
                ids += self._encode(self._backend, text[done:start])
            inner = [(a - start, b - start) for a, b in plain if start <= a < end]
            ids += self._plain(text[start:end], inner, is_first=start == 0)
            done = end
        return ids + self._encode(self._backend, text[done:])

    def _stretches(self, text: str, plain: Sequence[Span]) -> Iterator[Span]:
        """Yield the spans of the stretches with a plain word, without the white space that adjacent
        tokens consume."""
        starts = {start for start, _ in plain}
        start, takes, rest = 0, False, sorted(starts)
        ends = list(self._matches(text, plain))
        for match in [*ends, None]:
            end = len(text) if match is None else match.start()
            if any(start <= at < end for at in rest):
                stretch = text[start:end]
                left = len(stretch) - len(stretch.lstrip()) if takes else 0
                token = self._tokens[match[0]] if match is not None else None
                right = len(stretch) - len(stretch.rstrip()) if token and token.lstrip else 0
                yield start + left, end - right
            if match is not None:
                start, takes = match.end(), self._tokens[match[0]].rstrip

    def _matches(self, text: str, plain: Sequence[Span]) -> Iterator[re.Match[str]]:
        """Yield the added tokens outside the plain words."""
        at = 0
        for start, end in [*plain, (len(text), len(text))]:
            yield from self._any.finditer(text, at, start)
            at = end

    def _plain(self, stretch: str, words: Sequence[Span], *, is_first: bool) -> list[int]:
        """Return the ids of a stretch of ordinary text.

        If the vocabulary itself has a word as one token, the word is cut after its first character.
        """
        backend = self._without_added if is_first else self._continuing
        ids = self._encode(backend, stretch)
        unwanted = {self._backend.token_to_id(stretch[start:end]) for start, end in words}
        if unwanted.isdisjoint(ids):
            return ids
        cuts = [0, *(start + 1 for start, _ in words), len(stretch)]
        parts = [stretch[start:end] for start, end in itertools.pairwise(cuts)]
        first = self._encode(backend, parts[0])
        return first + [i for part in parts[1:] for i in self._encode(self._within_word, part)]

    def _encode(self, backend: Backend, text: str) -> list[int]:
        (found,) = backend.encode_batch_fast([text], add_special_tokens=False)
        return list(found.ids)

    @cached_property
    def _without_added(self) -> Backend:
        return self._sharing(_part(self._backend.normalizer), _part(self._backend.pre_tokenizer))

    @cached_property
    def _continuing(self) -> Backend:
        """The same for a stretch that does not begin the text."""
        splitter = _unprefixed(_part(self._backend.pre_tokenizer), "first")
        return self._sharing(_part(self._backend.normalizer), splitter)

    @cached_property
    def _within_word(self) -> Backend:
        """The same for the rest of a word: no space is put before it."""
        normalizer = _part(self._backend.normalizer)
        if normalizer and "normalizers" in normalizer:
            steps = [part for part in normalizer["normalizers"] if part["type"] != "Prepend"]
            normalizer["normalizers"] = steps
        splitter = _unprefixed(_part(self._backend.pre_tokenizer), "first", "always")
        return self._sharing(normalizer, splitter)

    def _sharing(self, normalizer: Any, splitter: Any) -> Backend:
        """Return a tokenizer with the same vocabulary in the same memory, other parts before it,
        and of the added tokens only those that ordinary text may become."""
        parts = Backend.from_str(
            json.dumps(_EMPTY | {"normalizer": normalizer, "pre_tokenizer": splitter})
        )
        backend = Backend(self._backend.model)
        if parts.normalizer is not None:
            backend.normalizer = parts.normalizer
        if parts.pre_tokenizer is not None:
            backend.pre_tokenizer = parts.pre_tokenizer
        added = sorted(self._backend.get_added_tokens_decoder().items())
        backend.add_tokens([_ordinary(token) for _, token in added])  # in order: the ids stay
        backend.encode_special_tokens = True
        return backend


_EMPTY: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


def _part(part: Any) -> Any:
    """Return a part of a tokenizer as in its file."""
    return None if part is None else json.loads(part.__getstate__())


def _ordinary(token: AddedToken) -> AddedToken:
    """Return an added token as treated in ordinary text: special, which is skipped, unless it
    belongs to the vocabulary that text is normalized for."""
    if token.normalized and not token.special:
        return token
    return AddedToken(token.content, normalized=False, special=True)


def _unprefixed(splitter: Any, *schemes: str) -> Any:
    """Return a pre-tokenizer without the space that these schemes put before a text.

    Mutates: splitter
    """
    for part in (splitter, *splitter.get("pretokenizers", ())) if splitter else ():
        if part.get("prepend_scheme") in schemes:
            part["prepend_scheme"] = "never"
    return splitter
