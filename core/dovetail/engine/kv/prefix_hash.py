"""PrefixHasher: identifies the content of a KV block by a keyed, chained hash.

The hash of block i covers all tokens up to its end, because it includes the hash of block i - 1.
The first block includes a root made of the request's typed extra keys (cache salt, adapter), and a
block with positions of an image includes the image's key. So two requests match only if these agree
too. The key is secret to the process: without it, nobody can construct a collision or learn a
prompt from a hash.

If engines with different block sizes exchange blocks, the chain uses units of tokens that all block
sizes are multiples of. A block's name is then the hashes of its units, last one first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Protocol

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.block_hash import BlockHash
from dovetail.registry.files import import_target


class Hashable(Protocol):
    """The fields of a request that the hasher reads; `block_hashes` is extended in place."""

    token_ids: list[int]
    block_hashes: list[bytes]

    @property
    def prefix_keys(self) -> tuple[tuple[str, str], ...]: ...

    def parts_between(self, start: int, end: int) -> tuple[tuple[str, str], ...]: ...


class PrefixHasher:
    """Hashes of full blocks of `block_tokens` tokens under one algorithm and key.

    `algorithm` is the "module:attribute" of a BlockHash. The chain uses units of `unit_tokens`
    tokens, a divisor of the block size (0: whole blocks).
    """

    def __init__(self, algorithm: str, key: bytes, block_tokens: int, unit_tokens: int = 0) -> None:
        block_hash = import_target(algorithm)
        if not isinstance(block_hash, BlockHash):
            raise BrokenPlugin(
                f"{algorithm} is {type(block_hash).__name__}, not a BlockHash.",
                where="--prefix-caching-hash-algo",
                fix="see dovetail.interfaces.data.block_hash.",
            )
        self._digest = partial(block_hash.digest, key)
        self._unit_tokens = unit_tokens or block_tokens
        assert block_tokens % self._unit_tokens == 0, "a block is not made of whole units"
        self._encode = block_hash.encode(self._unit_tokens)
        self._block_tokens = block_tokens
        self._is_whole = self._unit_tokens == block_tokens
        self._size = len(self._digest(b""))

    def root(self, keys: Sequence[tuple[str, str]]) -> bytes:
        """Return the hash that precedes a request's first block."""
        parts = [part.encode("utf-8", "surrogatepass") for pair in keys for part in pair]
        # Length prefixes distinguish ("salt", "ab"), ("adapter", "c") from any other split.
        return self._digest(b"root" + b"".join(_LENGTH.pack(len(p)) + p for p in parts))

    def block(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Return the hash of one full block, or unit, that follows `parent`."""
        return self._digest(self._encode(parent, token_ids))

    def _named(self, parent: bytes, request: Hashable, start: int) -> bytes:
        """Return the name of the block that starts at token `start` and follows `parent`."""
        units: list[bytes] = []
        for first in range(start, start + self._block_tokens, self._unit_tokens):
            end = first + self._unit_tokens
            parts = request.parts_between(first, end)
            if parts:
                parent = self._digest(parent + self.root(parts))
            parent = self.block(parent, request.token_ids[first:end])
            units.append(parent)
        return parent if len(units) == 1 else b"".join(reversed(units))

    def extend(self, request: Hashable, num_blocks: int) -> list[bytes]:
        """Return the request's hashes, at least `num_blocks` of them; their tokens must be known.

        Mutates: request.block_hashes
        """
        hashes = request.block_hashes
        if len(hashes) < num_blocks:
            name = hashes[-1] if hashes else self.root(request.prefix_keys)
            size = self._block_tokens
            for start in range(len(hashes) * size, num_blocks * size, size):
                name = self._named(name if self._is_whole else name[: self._size], request, start)
                hashes.append(name)
        return hashes


_LENGTH = Struct("<Q")


def sha256(key: bytes, data: bytes) -> bytes:
    """Return the keyed hash of data."""
    # Plain key-then-data is safe: hashes never leave the process, so nobody can extend one.
    return hashlib.sha256(_LENGTH.pack(len(key)) + key + data).digest()


SHA256 = BlockHash(digest=sha256)
DEFAULT = f"{__name__}:SHA256"
