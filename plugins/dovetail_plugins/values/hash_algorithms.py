"""Hashes by which equal prefixes are found: the choices of --prefix-caching-hash-algo.

`value` is the "module:attribute" of a BlockHash (`dovetail.interfaces.block_hash`). All of them are
keyed with a secret of the running engine, at full length, so names taken over from other servers
are no weaker here.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

_HASHES = "dovetail.engine.kv.prefix_hash"

SHA256 = Value(summary="keyed SHA-256", value=f"{_HASHES}:SHA256")
BLAKE2B = Value(
    summary="keyed BLAKE2b: faster where the CPU has no SHA-256 instructions",
    value=f"{_HASHES}:BLAKE2B",
)
SHA256_CBOR = Value(summary="keyed SHA-256 over CBOR text", value=f"{_HASHES}:SHA256_CBOR")
BUILTIN = Value(summary="an older name for sha256", value=f"{_HASHES}:SHA256")
SHA256_CBOR_64BIT = Value(summary="an older name for sha256_cbor", value=f"{_HASHES}:SHA256_CBOR")
