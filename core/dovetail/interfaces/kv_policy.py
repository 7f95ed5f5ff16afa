"""KVPolicy: how the KV cache is laid out and its blocks are allocated.

A scheduler uses the accounting that a policy creates; the worker fills the blocks it assigns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.scheduler import KVCache, RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class KVRoom:
    """The available KV memory: `num_blocks`, or, if that is None, as many blocks as fit in
    `memory_bytes`; plus `host_bytes` of host memory. A block holds `block_tokens` tokens."""

    block_tokens: int
    num_blocks: int | None = None
    memory_bytes: int | None = None
    host_bytes: int = 0


Has = Callable[[int, bytes], bool]
"""Returns whether a block of a group, given by its hash, is stored elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A request's blocks that are stored elsewhere: of its first `num_blocks` blocks all that are
    needed, after the first `num_cached`, which are cached. `starts` has for each group the first
    block that later tokens attend to; `hashes` names the request's blocks."""

    num_cached: int
    num_blocks: int
    starts: Sequence[int]
    hashes: Sequence[bytes]

    def blocks(self) -> list[tuple[int, int]]:
        """Return the blocks to load, as (group, block index in the request)."""
        return [
            (group, index)
            for group, start in enumerate(self.starts)
            for index in range(max(start, self.num_cached), self.num_blocks)
        ]


class BlockWatcher(Protocol):
    """Is notified by an accounting of changes to blocks."""

    def filled(
        self, request: RequestState, group: int, index: int, block: int, *, is_new: bool
    ) -> None:
        """Block `index` of a request is full and computed, and its hash is known. `is_new`: no
        block with this hash could be found before."""

    def evicted(self, group: int, prefix_hash: bytes) -> None:
        """A prefix can no longer be found."""

    def suspected(self, group: int, prefix_hash: bytes) -> None:
        """A block's content may be wrong. Its eviction is reported separately."""

    def cleared(self) -> None:
        """No prefix can be found any more."""


class HostUse(Protocol):
    """The use of host blocks: the share in use, and the requests that have some."""

    @property
    def usage(self) -> float: ...

    @property
    def num_requests(self) -> int: ...

    def take_released(self) -> list[int]:
        """Return the external loads that were released since the last call. Mutates: self"""


class KVAccounting(KVCache, Protocol):
    """The methods of the accounting that an engine calls, in addition to its scheduler's.

    Counters since the start: tokens of first allocations, those that hit the prefix index, requests
    swapped out to host blocks, tokens swapped in from there, and tokens loaded from elsewhere.
    """

    num_queried_tokens: int
    num_hit_tokens: int
    num_swaps: int
    num_swapped_in_tokens: int
    num_loaded_tokens: int

    @property
    def host(self) -> HostUse: ...

    def blocks_of(self, request: RequestState) -> tuple[tuple[int, ...], ...]:
        """Return the request's block ids per group; empty if it owns none."""

    def watch(self, watcher: BlockWatcher) -> None:
        """Notify a watcher of changes to blocks from now on."""

    def find_elsewhere(self, request: RequestState, has: Has) -> Found | None:
        """Return what `has` finds of a request beyond its cached blocks, or None for nothing.
        Mutates: request.block_hashes"""

    def adopt(self, request: RequestState, found: Found, first: int) -> None:
        """Treat loaded blocks as host blocks of a request that owns none. They were loaded under
        numbers from `first` on, in the order of `found.blocks`. All numbers are at least the
        layout's `num_host_blocks`."""

    @property
    def num_pinned_blocks(self) -> int:
        """Return how many blocks requests have pinned; none of them is free."""

    def pin(self, request: RequestState, duration_s: float, num_tokens: int) -> None:
        """Pin what is cached of a prompt's first tokens, unless requests need the room."""

    def rekey(self, hash_key: bytes) -> None:
        """Hash with another key from now on, so that new requests find no earlier block."""

    def forget_all(self) -> None:
        """Make all cached prefixes unfindable; requests keep the blocks they own."""

    def check_invariants(self) -> None:
        """Raise AssertionError when blocks are lost or owned twice."""


class KVPolicy(Plugin):
    """Lays out a cache for a model's layers and accounts for its blocks.

    Block 0 is the null block: it counts among a layout's blocks and is never allocated.
    """

    interface_version: ClassVar[int] = 1

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def plan(self, layers: Sequence[CachedLayer], room: KVRoom) -> KVLayout:
        """Return the layout. Raises: ConfigError when there is no room for two blocks."""

    @abstractmethod
    def accounting(self, layout: KVLayout, spec: CacheSpec, hash_key: bytes) -> KVAccounting:
        """Return the accounting for a layout that the worker has allocated."""
