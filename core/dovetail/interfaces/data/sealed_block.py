"""Sealed blocks: the bytes of a KV block after a header that verifies them.

The header is 64 bytes, so that the payload stays aligned: the mark `DVKV0001`, the payload's size
and the rank's number (8 and 4 bytes, little-endian), 12 zeros, and the SHA-256 of the key, the
rank's number and the payload. What a store returns is used only if all of this is correct.
"""

from __future__ import annotations

import hashlib
from struct import Struct

HEADER_BYTES = 64
_MARK = b"DVKV0001"
_HEADER = Struct("<8sQI12x32s")
_RANK = Struct("<I")
assert _HEADER.size == HEADER_BYTES

Sealed = bytes | bytearray | memoryview


def seal(block: bytearray | memoryview, key: bytes, rank: int) -> None:
    """Write the header of a block whose payload is already in it. Mutates: block"""
    payload = memoryview(block)[HEADER_BYTES:]
    digest = _digest(payload, key, rank)
    _HEADER.pack_into(block, 0, _MARK, len(payload), rank, digest)


def unsealed(block: Sealed, key: bytes, rank: int) -> memoryview | None:
    """Return a block's payload, or None unless it is complete and was sealed for this key and
    rank."""
    view = memoryview(block).cast("B")
    if len(view) < HEADER_BYTES:
        return None
    mark, size, written_rank, digest = _HEADER.unpack_from(view)
    payload = view[HEADER_BYTES:]
    if mark != _MARK or size != len(payload) or written_rank != rank:
        return None
    return payload if digest == _digest(payload, key, rank) else None


def _digest(payload: memoryview, key: bytes, rank: int) -> bytes:
    hashed = hashlib.sha256(key)
    hashed.update(_RANK.pack(rank))
    hashed.update(payload)
    return hashed.digest()
