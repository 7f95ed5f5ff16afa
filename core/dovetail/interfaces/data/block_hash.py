"""BlockHash: how a KV block's content is hashed; the value of a `hash_algorithm` plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct

Digest = Callable[[bytes, bytes], bytes]
"""Takes a secret key and data; returns a hash that cannot be forged without the key."""
Encode = Callable[[bytes, Sequence[int]], bytes]
"""Takes the previous block's hash and this block's token ids; returns data, injectively."""


def packed(block_tokens: int) -> Encode:
    """Return an encoder: "block", the parent's hash, then each token in 8 bytes."""
    pack = Struct(f"<{block_tokens}q").pack
    return lambda parent, token_ids: b"block" + parent + pack(*token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHash:
    """A keyed digest of at least 16 bytes, and the encoding of blocks of a given number of tokens.

    Requests with equal hashes share cached content, so an attacker without the key must not be able
    to make the digest collide.
    """

    digest: Digest
    encode: Callable[[int], Encode] = packed
