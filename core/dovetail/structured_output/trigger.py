"""Trigger: finds a text in the tokens of a row, and forbids tokens that extend beyond its end.

A token with the end of a trigger and the start of what follows would write text that no matcher
sees. Such tokens are forbidden if they would complete the trigger.
"""

from __future__ import annotations

import numpy as np

from dovetail.interfaces.structured_output import Vocabulary

BLANKS = b" \t\r\n"


class Trigger:
    """One text. `may_be_blank`: white space after it, in the same token, is allowed."""

    def __init__(self, text: str, vocabulary: Vocabulary, *, may_be_blank: bool) -> None:
        self.text = text.encode()
        self._special = {i: word.encode() for word, i in vocabulary.special.items()}
        self._tokens = vocabulary.tokens
        self._extending_ids = self._extending(may_be_blank)

    def _extending(self, may_be_blank: bool) -> dict[int, np.ndarray]:
        """Return the tokens that extend beyond the trigger's end, by their trigger bytes."""
        tokens: dict[int, list[int]] = {}
        for size in range(1, len(self.text) + 1):
            tail = self.text[-size:]
            tokens[size] = [
                token_id
                for token_id, written in enumerate(self._tokens)
                if len(written) > size
                and written.startswith(tail)
                and not (may_be_blank and not written[size:].strip(BLANKS))
            ]
        whole = [
            token_id
            for token_id, written in enumerate(self._tokens)
            if (at := written.find(self.text)) > 0
            and written[at + len(self.text) :].strip(BLANKS if may_be_blank else b"")
        ]
        tokens[len(self.text)] += whole
        return {size: np.array(ids, dtype=np.int64) for size, ids in tokens.items() if ids}

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; for a special token, the bytes of its text."""
        return self._special.get(token_id) or self._tokens[token_id]

    def is_in(self, tail: bytes) -> bool:
        """Return whether the trigger is in the end of the text."""
        return self.text in tail

    def kept(self, tail: bytes) -> bytes:
        """Return the end of the text that may be the start of the trigger."""
        return tail[-(len(self.text) - 1) :] if len(self.text) > 1 else b""

    def forbidden(self, tail: bytes) -> np.ndarray:
        """Return the ids that would extend beyond the trigger after text that ends with `tail`."""
        ids = [
            found
            for size, found in self._extending_ids.items()
            if tail.endswith(self.text[: len(self.text) - size])
        ]
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.int64)
