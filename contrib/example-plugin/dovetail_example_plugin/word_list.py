"""A structured-output backend: one of a list of texts, by a walk through a tree of bytes.

The smallest backend that keeps every promise of the kind: no library, no grammar, one kind of
constraint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces import Info
from dovetail.interfaces.data.constraint import Choice, Constraint, Literal
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)

if TYPE_CHECKING:
    import numpy as np


class WordList(StructuredOutputBackend):
    """Holds an answer to one of several texts."""

    interface_version = 2
    info = Info(summary="one of a list of texts, without any library (an example)")
    capabilities = frozenset({"choice"})

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def compile(self, constraint: Constraint) -> bytes:
        """Return the texts. Raises: InvalidConstraint"""
        parts = constraint.parts if isinstance(constraint, Choice) else (constraint,)
        texts = [part.text for part in parts if isinstance(part, Literal)]
        if len(texts) < len(parts) or not all(texts):
            raise InvalidConstraint("only lists of texts that are not empty are taken")
        return json.dumps(texts).encode()

    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the texts, to be matched."""
        return _Texts([text.encode() for text in json.loads(artifact)], self.vocabulary)


class _Texts:
    def __init__(self, texts: list[bytes], vocabulary: Vocabulary) -> None:
        self.texts = texts
        self.vocabulary = vocabulary
        self.num_bytes = sum(map(len, texts))

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""
        return _Walk(self.texts, self.vocabulary)


class _Walk:
    """`written` are the bytes after every token accepted."""

    def __init__(self, texts: list[bytes], vocabulary: Vocabulary) -> None:
        self._texts = texts
        self._vocabulary = vocabulary
        self._written = [b""]

    def _follows(self, token_id: int) -> bool:
        more = self._vocabulary.tokens[token_id]
        written = self._written[-1] + more
        return bool(more) and any(text.startswith(written) for text in self._texts)

    def accept(self, token_id: int) -> bool:
        """Go on by a token, if a text goes on that way."""
        if token_id in self._vocabulary.eos_ids:
            return self._written[-1] in self._texts
        if not self._follows(token_id):
            return False
        self._written.append(self._written[-1] + self._vocabulary.tokens[token_id])
        return True

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of tokens that may follow. Mutates: mask"""
        allowed = [i for i in range(self._vocabulary.size) if self._follows(i)]
        if self._written[-1] in self._texts:
            allowed += self._vocabulary.eos_ids
        for token_id in allowed:
            mask[token_id // 32] |= 1 << token_id % 32

    def is_complete(self) -> bool:
        """Return whether no text goes on from here."""
        written = self._written[-1]
        return all(not text.startswith(written) or text == written for text in self._texts)

    def forced(self) -> Sequence[int]:
        """Return nothing: finding the one way to write a text is left to the model."""
        return ()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        del self._written[len(self._written) - num_tokens :]
