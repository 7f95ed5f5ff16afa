"""KVEventPublisher: publishes what an engine's prefix cache holds.

Events are for routers of several engines: blocks have been stored or removed, or all are cleared.
Format: the KV cache events of vLLM, msgpack arrays whose first element is the event's name; fields
are only ever added at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.plugin import Plugin

GPU, CPU = "GPU", "CPU"
"""Where blocks are: in a device's memory, or in its host's memory."""


class EventsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The publisher of an engine's events, which also get the engine's number in a batch."""

    publisher: Selection


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Consecutive blocks can be found from now on. The first one follows `parent_block_hash` (None:
    nothing). `token_ids` are the tokens of all of them. `lora_name` is the adapter that they were
    computed with; `lora_id` is always None."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Blocks can no longer be found."""

    block_hashes: tuple[int, ...]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """No block can be found any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The events of one step. `ts` is the time in seconds since 1970."""

    ts: float
    events: tuple[Event, ...]
    data_parallel_rank: int | None = None


class EventFeed(ABC):
    """Reads the events of one engine in another process. One thread uses it."""

    @abstractmethod
    def read(self) -> list[tuple[Event, ...] | None]:
        """Return the events that have arrived, without waiting. None: events in between were
        missed, so earlier knowledge is invalid. Mutates: self"""

    def close(self) -> None:
        """Stop reading. May be called twice."""


class KVEventPublisher(Plugin):
    """Sends the batches of the engine with number `engine` to all listeners.

    Slow or missing listeners never delay the engine.
    """

    interface_version: ClassVar[int] = 1

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, Any]:
        """Return options for a test that has an empty folder. The default: none."""
        del folder
        return {}

    @classmethod
    def feed(cls, options: Any, engine: int, host: str = "") -> EventFeed | None:
        """Return a reader, for another process, of the engine's events; the engine is on the
        machine `host` ("": this one). None if unsupported, which is the default."""
        del options, engine, host
        return None

    @abstractmethod
    def __init__(self, options: Any, engine: int) -> None:
        """Start publishing. Raises: ConfigError when an address is not available."""

    @abstractmethod
    def publish(self, batch: EventBatch) -> None:
        """Queue a batch for sending. Returns immediately."""

    def close(self) -> None:
        """Briefly try to send what is left, then release everything. May be called twice."""
