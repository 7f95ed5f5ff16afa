"""Hashes by which equal prefixes are found: the choices of --prefix-caching-hash-algo.

`value` is the name `engine.kv.prefix_hash` understands. All of them are keyed with a secret of the
running engine, at full length, so names taken over from other servers are no weaker here.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

SHA256 = Value(summary="keyed SHA-256", value="sha256")
BLAKE2B = Value(
    summary="keyed BLAKE2b: faster where the CPU has no SHA-256 instructions", value="blake2b"
)
SHA256_CBOR = Value(summary="keyed SHA-256 over CBOR text", value="sha256_cbor")
BUILTIN = Value(summary="an older name for sha256", value="sha256")
SHA256_CBOR_64BIT = Value(summary="an older name for sha256_cbor", value="sha256_cbor")
