"""EarlyClose: finds a short way from inside a JSON text to its end, by trying tokens on a matcher.

Used near max_tokens, so that a truncated answer is complete JSON. Greedy: closing characters first,
then the shortest values. Independent of schemas.
"""

from __future__ import annotations

import numpy as np

from dovetail.interfaces.structured_output import InvalidConstraint, Matcher, Vocabulary

WINDOW_TOKENS = 128
"""The search for an end starts this many tokens before max_tokens; longer ways are missed."""
SPARE_TOKENS = 8
"""The safety margin in tokens, since one more plain token may need several others."""
MAX_TRIED = 24
_PLAIN = frozenset(range(256)) - frozenset(b'"[{,:')
_CLOSERS = frozenset(b'"]}')
_SHORT = (b"0", b"1", b"null", b"true", b"false", b'""', b"[", b"{", b":", b",", b'"')


class EarlyClose:
    """The order in which the tokens of a vocabulary are tried; shared by all rows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        tokens = vocabulary.tokens
        closing = [i for i, text in enumerate(tokens) if text and _CLOSERS.issuperset(text)]
        closing.sort(key=lambda i: -len(tokens[i]))
        by_text = {text: i for i, text in enumerate(tokens) if text in _SHORT}
        short = [by_text[text] for text in _SHORT if text in by_text]
        rest = sorted(
            (i for i, text in enumerate(tokens) if text and text.strip()),
            key=lambda i: len(tokens[i]),
        )
        self._order = np.array([*closing, *short, *rest], dtype=np.int64)
        quotes = [i for i in closing if tokens[i].startswith(b'"')]
        self._order_in_text = np.array([*quotes, *self._order], dtype=np.int64)
        self._num_in_text = len(tokens) // 4
        self._ends = np.array(vocabulary.eos_ids, dtype=np.int64)
        # Plain tokens make the way to the end at most a few tokens longer. Tokens that may open
        # something are tried one by one, short ones first.
        opening = [i for i in self._order.tolist() if not _PLAIN.issuperset(tokens[i])]
        self._opening = np.array(list(dict.fromkeys(opening)), dtype=np.int64)
        plain = np.array([bool(t) and _PLAIN.issuperset(t) for t in tokens], dtype=bool)
        plain[self._ends] = True
        bits = np.zeros(vocabulary.mask_words * 32, dtype=np.uint8)
        bits[: len(plain)] = plain
        self._plain = np.packbits(bits, bitorder="little").view(np.uint32)

    def path(self, matcher: Matcher, max_tokens: int) -> list[int] | None:
        """Return at most `max_tokens` tokens after which the answer may end, or None.

        The matcher's state is unchanged afterwards.
        """
        taken: list[int] = []
        mask = np.zeros(self._vocabulary.mask_words, dtype=np.uint32)
        try:
            while True:
                for token_id in () if matcher.is_complete() else matcher.forced():
                    if not matcher.accept(token_id):
                        return None
                    taken.append(token_id)
                if len(taken) > max_tokens:
                    return None
                mask[:] = 0
                matcher.fill(mask)
                if _bits(mask, self._ends).any():
                    return taken
                order = self._order_for(mask)
                allowed = _bits(mask, order)
                if len(taken) >= max_tokens or not allowed.any():
                    return None
                token_id = int(order[int(allowed.argmax())])
                if not matcher.accept(token_id):
                    return None
                taken.append(token_id)
        except InvalidConstraint:  # this way exceeds a limit of the backend, or is a dead end
            return None
        finally:
            if taken:
                matcher.rollback(len(taken))

    def keep_closable(self, matcher: Matcher, mask: np.ndarray, left: int) -> None:
        """Limit a mask to tokens that let the answer end within `left` tokens, including the end.

        If no way is that short, the mask stays unchanged. Mutates: mask
        """
        path = self.path(matcher, left - 1)
        if path is None:
            return
        safe = np.zeros_like(mask)
        if len(path) + SPARE_TOKENS < left:
            safe |= mask & self._plain
            opening = self._opening[_bits(mask, self._opening)][:MAX_TRIED]
            for token_id in opening.tolist():
                if self._leads_on(matcher, token_id, left - 2):
                    safe[token_id // 32] |= np.uint32(1) << np.uint32(token_id % 32)
        next_id = path[0] if path else int(self._ends[0])
        safe[next_id // 32] |= np.uint32(1) << np.uint32(next_id % 32)
        mask[:] = safe

    def _leads_on(self, matcher: Matcher, token_id: int, left: int) -> bool:
        """Return whether the answer can end within `left` tokens after this one."""
        if not matcher.accept(token_id):
            return False
        try:
            return self.path(matcher, left) is not None
        finally:
            matcher.rollback(1)

    def _order_for(self, mask: np.ndarray) -> np.ndarray:
        """Return the order in which to try tokens. A mask that allows many tokens is inside a
        string, where brackets are only text; there the quotation mark comes first."""
        num_allowed = int(np.unpackbits(mask.view(np.uint8)).sum())
        return self._order_in_text if num_allowed > self._num_in_text else self._order


def _bits(mask: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return whether each token's bit is set. Shapes: [words] uint32, [N] -> [N] bool"""
    return (mask[ids // 32] >> (ids % 32).astype(np.uint32)) & np.uint32(1) != 0
