"""KVEventPublisher: tells others what an engine's prefix cache holds.

Events are the ones that routers of several engines read: blocks have been stored or removed, or all
are gone. Format: the KV cache events of vLLM, msgpack arrays whose first element is the event's
name; fields are only ever added at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.selection import Selection

GPU, CPU = "GPU", "CPU"
"""Where blocks are: in a device's memory, or in that of its host."""


class EventsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who publishes an engine's events, and the number of their engine in a batch."""

    publisher: Selection


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Blocks that follow each other can be found from now on. The first one follows
    `parent_block_hash` (None: nothing). `token_ids` are those of all of them. `lora_name` is the
    adapter that they were computed with, `lora_id` is always None.
    """

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
    """What happened in a step. `ts` is the time in seconds since 1970."""

    ts: float
    events: tuple[Event, ...]
    data_parallel_rank: int | None = None


class EventFeed(ABC):
    """What one engine publishes, read elsewhere. One thread uses it."""

    @abstractmethod
    def read(self) -> list[tuple[Event, ...] | None]:
        """Return the events that have come, without waiting; None: something between was missed, so
        that what was known no longer holds. Mutates: self"""

    def close(self) -> None:
        """Read no more. May be called twice."""


class KVEventPublisher(Plugin):
    """Sends the batches of the engine with the number `engine` to everybody who listens.

    What listeners do, or that there are none, never holds the engine up.
    """

    interface_version: ClassVar[int] = 1

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, Any]:
        """Return options for a try in a folder of its own. The default: none."""
        del folder
        return {}

    @classmethod
    def feed(cls, options: Any, engine: int, host: str = "") -> EventFeed | None:
        """Return how another process reads what the engine publishes, which is on the machine
        `host` ("": this one); None where it cannot. The default: it cannot."""
        del options, engine, host
        return None

    @abstractmethod
    def __init__(self, options: Any, engine: int) -> None:
        """Begin to publish. Raises: ConfigError when an address cannot be had."""

    @abstractmethod
    def publish(self, batch: EventBatch) -> None:
        """Send a batch, soon. Returns at once."""

    def close(self) -> None:
        """Send what is left, for a moment, and let go of everything. May be called twice."""
