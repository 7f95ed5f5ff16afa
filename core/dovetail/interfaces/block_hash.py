"""BlockHash: how the content of a KV block is hashed, the value of a `hash_algorithm` plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct

Digest = Callable[[bytes, bytes], bytes]
"""Takes a secret key and data; returns a hash that nobody can aim at without the key."""
Encode = Callable[[bytes, Sequence[int]], bytes]
"""Takes the hash of the block before and this block's token ids; returns data, one to one."""


def packed(block_tokens: int) -> Encode:
    """Return an encoder: "block", the parent, then each token in 8 bytes."""
    pack = Struct(f"<{block_tokens}q").pack
    return lambda parent, token_ids: b"block" + parent + pack(*token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHash:
    """A keyed digest of at least 16 bytes, and the encoding of blocks of a number of tokens.

    Requests whose hashes are equal share what is cached, so a digest must be one that an attacker
    who does not know the key cannot make collide.
    """

    digest: Digest
    encode: Callable[[int], Encode] = packed
