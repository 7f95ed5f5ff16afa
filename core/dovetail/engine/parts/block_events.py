"""BlockEvents: publishes changes of an engine's prefix cache as events.

Events are collected while a step is recorded and published as one batch. If layers form several KV
groups, only the first group's blocks are reported: the full-attention layers, if any.
"""

from __future__ import annotations

import time

from dovetail.engine.parts.part import EnginePart
from dovetail.interfaces.kv_event_publisher import (
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    KVEventPublisher,
)
from dovetail.interfaces.scheduler import RequestState

TOLD_GROUP = 0


class BlockEvents(EnginePart):
    """The events of engine number `engine`; `medium` holds its cache. Used by one thread."""

    def __init__(
        self, publisher: KVEventPublisher, block_tokens: int, engine: int, medium: str = GPU
    ) -> None:
        self._publisher = publisher
        self._block_tokens = block_tokens
        self._engine = engine
        self._medium = medium
        self._events: list[Event] = []

    def filled(
        self, request: RequestState, group: int, index: int, block: int, *, is_new: bool
    ) -> None:
        """Record a block that has become findable. Mutates: self"""
        if group != TOLD_GROUP or not is_new:
            return
        size, hashes = self._block_tokens, request.block_hashes
        own = event_hash(hashes[index])
        parent = event_hash(hashes[index - 1]) if index else None
        tokens = tuple(request.token_ids[index * size : (index + 1) * size])
        adapter = dict(request.prefix_keys).get("adapter")
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockStored) and last.block_hashes[-1] == parent:
            # Merge consecutive blocks into one event.
            self._events.pop()
            parent = last.parent_block_hash
            tokens = last.token_ids + tokens
            hashes_told = (*last.block_hashes, own)
        else:
            hashes_told = (own,)
        self._events.append(
            BlockStored(
                block_hashes=hashes_told,
                parent_block_hash=parent,
                token_ids=tokens,
                block_size=size,
                lora_id=None,
                medium=self._medium,
                lora_name=adapter.split("#")[0] if adapter else None,
            )
        )

    def evicted(self, group: int, prefix_hash: bytes) -> None:
        """Record a block that has been evicted from the index. Mutates: self"""
        if group != TOLD_GROUP:
            return
        last = self._events[-1] if self._events else None
        hashes: tuple[int, ...] = (event_hash(prefix_hash),)
        if isinstance(last, BlockRemoved):
            self._events.pop()
            hashes = last.block_hashes + hashes
        self._events.append(BlockRemoved(block_hashes=hashes, medium=self._medium))

    def suspected(self, group: int, prefix_hash: bytes) -> None:
        """Do nothing: the block is also reported as evicted."""

    def cleared(self) -> None:
        """Record that the whole prefix index was cleared. Mutates: self"""
        self._events.append(AllBlocksCleared())

    def publish(self) -> None:
        """Publish the recorded events, if any. Mutates: self"""
        if self._events:
            events, self._events = tuple(self._events), []
            self._publisher.publish(
                EventBatch(ts=time.time(), events=events, data_parallel_rank=self._engine)
            )

    def close(self) -> None:
        """Publish the rest and close the publisher. May be called twice."""
        self.publish()
        self._publisher.close()


def event_hash(prefix_hash: bytes) -> int:
    """Return a block's id in events: the first 8 bytes of its hash, as a number."""
    return int.from_bytes(prefix_hash[:8], "big")
