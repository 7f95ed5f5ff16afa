"""PrefixKeys: 64-bit numbers for the beginnings of a prompt. Knows no engines.

The key of the first n tokens is the sum of (token + 1) times a secret random factor for each place,
modulo 2^64, so one pass over the prompt gives the keys of all its beginnings. Finding two
beginnings with the same key requires the secret factors: for tokens below 2^18 the chance is 2^-46
or less, whatever the tokens are.

There is a key at the end of each chunk: up to 16 of the shortest length, then 8 for every doubling
of the prompt. So a long prompt has few, and no chunk is longer than an eighth of what precedes it.

Source: Lemire, Kaser, "Strongly universal string hashing is fast", 2014 (multilinear hashing).
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

import numpy as np

FACTOR_BYTES = 8


class PrefixKeys:
    """Keys of at most the first `most_tokens` tokens, in chunks of `chunk_tokens` and more."""

    __slots__ = ("_factors", "_offsets", "_products", "_secret", "_starts", "ends")

    def __init__(self, *, chunk_tokens: int, most_tokens: int) -> None:
        self.ends = chunk_ends(chunk_tokens, most_tokens)
        """How many tokens each key covers."""
        self._secret = secrets.token_bytes(32)
        last = self.ends[-1] if self.ends else 0
        self._factors = np.frombuffer(secrets.token_bytes(FACTOR_BYTES * last), np.uint64)
        self._products = np.empty_like(self._factors)
        self._starts = np.array((0, *self.ends[:-1]))
        sums = np.cumsum(self._factors, dtype=np.uint64)
        self._offsets = sums[np.array(self.ends, dtype=np.int64) - 1]

    def of(self, prompt_ids: Sequence[int], salt: str) -> list[int]:
        """Return the keys of a prompt's whole chunks.

        The last token always has to be computed, so it belongs to none.
        """
        ends = self.ends
        count = bisect_right(ends, len(prompt_ids) - 1)
        if not count:
            return []
        end = ends[count - 1]
        if len(prompt_ids) > 2 * end:
            prompt_ids = prompt_ids[:end]
        packed = Struct(f"{len(prompt_ids)}n").pack(*prompt_ids)
        products = self._products[:end]
        np.multiply(np.frombuffer(packed, np.uint64, end), self._factors[:end], out=products)
        sums = np.add.accumulate(np.add.reduceat(products, self._starts[:count]))
        sums += self._offsets[:count]
        if salt:
            sums += self._number_of(salt)
        return sums.tolist()

    def _number_of(self, salt: str) -> np.uint64:
        digest = blake2b(salt.encode(), digest_size=8, key=self._secret).digest()
        return np.frombuffer(digest, np.uint64)[0]


def chunk_ends(chunk_tokens: int, most_tokens: int) -> list[int]:
    """Return the ends of chunks: chunk lengths grow with the prompt before them."""
    ends = []
    place = 1  # in chunks of the shortest length
    while (end := place * chunk_tokens) <= most_tokens:
        ends.append(end)
        place += 1 << max(0, place.bit_length() - 4)
    return ends
