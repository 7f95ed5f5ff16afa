"""Hashes of KV blocks besides the default one: choices of --prefix-caching-hash-algo."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dovetail.engine.kv.prefix_hash import sha256
from dovetail.interfaces.data.block_hash import BlockHash, Encode


def _blake2b(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, key=key).digest()


def _cbor(block_tokens: int) -> Encode:
    """Return an encoder to RFC 8949 deterministic CBOR: the array [parent, [tokens ...]]."""
    head = _cbor_head(4, block_tokens)

    def encode(parent: bytes, token_ids: Sequence[int]) -> bytes:
        tokens = b"".join(_cbor_head(0, token_id) for token_id in token_ids)
        return b"\x82" + _cbor_head(2, len(parent)) + parent + head + tokens

    return encode


def _cbor_head(major: int, value: int) -> bytes:
    """Return a CBOR item head: 3 bits of major type, then the value in the fewest bytes."""
    if value < 24:
        return bytes((major << 5 | value,))
    for extra, num_bytes in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * num_bytes):
            return bytes((major << 5 | extra,)) + value.to_bytes(num_bytes, "big")
    raise ValueError(f"token id {value} does not fit 64 bits")


SHA256_CBOR = BlockHash(digest=sha256, encode=_cbor)
BLAKE2B = BlockHash(digest=_blake2b)
