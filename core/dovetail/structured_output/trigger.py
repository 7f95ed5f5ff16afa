"""Marker: sees in a row's tokens that a text was written, and keeps tokens from running over it.

A token that holds the end of the marker and the beginning of what follows would bring text that no
matcher sees; such tokens are forbidden where they would complete the marker.
"""

from __future__ import annotations

import numpy as np

from dovetail.interfaces.structured_output import Vocabulary

BLANKS = b" \t\r\n"


class Trigger:
    """One text. `may_be_blank`: white space behind it in the same token does no harm."""

    def __init__(self, text: str, vocabulary: Vocabulary, *, may_be_blank: bool) -> None:
        self.text = text.encode()
        self._special = {i: word.encode() for word, i in vocabulary.special.items()}
        self._tokens = vocabulary.tokens
        self._over = self._running_over(may_be_blank)

    def _running_over(self, may_be_blank: bool) -> dict[int, np.ndarray]:
        """Return, by the number of the marker's bytes that a token brings, the ids of tokens that
        go on behind its end."""
        found: dict[int, list[int]] = {}
        for size in range(1, len(self.text) + 1):
            tail = self.text[-size:]
            found[size] = [
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
        found[len(self.text)] += whole
        return {size: np.array(ids, dtype=np.int64) for size, ids in found.items() if ids}

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token writes, the text of a special token included."""
        return self._special.get(token_id) or self._tokens[token_id]

    def is_in(self, tail: bytes) -> bool:
        """Return whether the marker stands in the end of the text."""
        return self.text in tail

    def kept(self, tail: bytes) -> bytes:
        """Return as much of the text's end as may be the beginning of the marker."""
        return tail[-(len(self.text) - 1) :] if len(self.text) > 1 else b""

    def forbidden(self, tail: bytes) -> np.ndarray:
        """Return the ids that would run over the marker after a text with this end."""
        ids = [
            found
            for size, found in self._over.items()
            if tail.endswith(self.text[: len(self.text) - size])
        ]
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.int64)
