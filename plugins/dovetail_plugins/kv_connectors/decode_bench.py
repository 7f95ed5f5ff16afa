"""DecodeBench: says that it has every block, and brings zeros. Measures decoding alone: prompts
cost nothing, and answers have no meaning."""

from __future__ import annotations

import logging
from typing import Any

from dovetail.interfaces.data.sealed_block import seal
from dovetail.interfaces.kv_connector import BlockStore, Buffer, KVConnector, StoreFacts, StoreIndex
from dovetail.interfaces.plugin import Info

log = logging.getLogger(__name__)


class DecodeBench(KVConnector):
    """A store of zeros."""

    info = Info(summary="brings zeros for every prompt: a fake for measurements of decoding")
    capabilities = frozenset({"fake"})

    def index(self, facts: StoreFacts) -> Everything:
        """Return the engine's side."""
        log.warning("the KV connector decode_bench makes all answers meaningless")
        return Everything()

    def store(self, facts: StoreFacts) -> Zeros:
        """Return a rank's side."""
        return Zeros(facts)


class Everything(StoreIndex):
    """Has all blocks."""

    def has(self, key: bytes) -> bool:
        """Return that the block is there."""
        return True

    def keep(self, key: bytes) -> bool:
        """Return False: nothing is stored."""
        return False


class Zeros(BlockStore):
    """Blocks of zeros."""

    def __init__(self, facts: StoreFacts) -> None:
        self._facts = facts

    def read(self, key: bytes) -> Buffer | None:
        """Return a sealed block of zeros."""
        block = bytearray(self._facts.block_bytes)
        seal(block, key, self._facts.rank)
        return block

    def write(self, key: bytes, block: Any) -> None:
        """Drop the block."""
