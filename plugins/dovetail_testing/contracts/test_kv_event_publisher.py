"""KVEventPublisher: takes every batch immediately, with or without listeners, and ends in order."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.interfaces.kv_event_publisher import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEventPublisher,
)
from dovetail.registry.options import options_for

NUM_BATCHES = 5000
SECONDS = 5.0
"""Far more than any good publisher takes: the machine may be busy."""


@pytest.fixture
def folder() -> Iterator[str]:
    """Return a folder with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield name


def new_publisher(plugin: Any, folder: str, engine: int = 0) -> KVEventPublisher:
    """Return a publisher with its options for a try."""
    options = options_for(plugin, plugin.sample_options(folder))
    publisher: KVEventPublisher = plugin(options, engine)
    return publisher


def batch_of(number: int) -> EventBatch:
    """Return a batch with every sort of event."""
    stored = BlockStored(
        block_hashes=(number, 2**64 - 1),
        parent_block_hash=None,
        token_ids=tuple(range(8)),
        block_size=4,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )
    removed = BlockRemoved(block_hashes=(number,), medium="GPU")
    return EventBatch(ts=1.5, events=(stored, removed, AllBlocksCleared()), data_parallel_rank=0)


class TestKVEventPublisher:
    """A publisher without listeners."""

    kind = "kv_event_publisher"

    def test_takes_batches_at_once(self, plugin: Any, folder: str) -> None:
        """Without listeners, no call waits."""
        publisher = new_publisher(plugin, folder)
        began_s = time.monotonic()
        for number in range(NUM_BATCHES):
            publisher.publish(batch_of(number))
        assert time.monotonic() - began_s < SECONDS
        publisher.close()

    def test_several_engines_publish(self, plugin: Any, folder: str) -> None:
        """Engines with other numbers publish alongside the first one with the same options."""
        publishers = [new_publisher(plugin, folder, engine) for engine in range(3)]
        for publisher in publishers:
            publisher.publish(batch_of(0))
            publisher.close()

    def test_ends_twice(self, plugin: Any, folder: str) -> None:
        """A publisher may be closed twice, and a new one can replace it."""
        for _ in range(2):
            publisher = new_publisher(plugin, folder)
            publisher.close()
            publisher.close()
