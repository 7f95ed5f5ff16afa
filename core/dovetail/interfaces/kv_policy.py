"""KVPolicy: how the KV cache is laid out, and how its blocks are handed out.

A scheduler asks the accounting that a policy makes; the worker fills the blocks that it names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.scheduler import KVCache, RequestState
from dovetail.interfaces.spec import CacheSpec
from dovetail.interfaces.step import CachedLayer, KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class KVRoom:
    """How much cache there may be: `num_blocks`, or where that is None what `memory_bytes` holds;
    `host_bytes` beside it. A block holds `block_tokens` tokens."""

    block_tokens: int
    num_blocks: int | None = None
    memory_bytes: int | None = None
    host_bytes: int = 0


Has = Callable[[int, bytes], bool]
"""Says whether a block of a group, named by its hash, is elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies elsewhere of a request: of its first `num_blocks` blocks all that are needed and
    are not among the `num_cached` first, which are cached. `starts` has for each group the first
    block that later tokens look at; `hashes` names the request's blocks.
    """

    num_cached: int
    num_blocks: int
    starts: Sequence[int]
    hashes: Sequence[bytes]

    def blocks(self) -> list[tuple[int, int]]:
        """Return the blocks to bring: their groups, and their places in the request."""
        return [
            (group, index)
            for group, start in enumerate(self.starts)
            for index in range(max(start, self.num_cached), self.num_blocks)
        ]


class BlockWatcher(Protocol):
    """Told by an accounting what becomes of blocks."""

    def filled(
        self, request: RequestState, group: int, index: int, block: int, *, is_new: bool
    ) -> None:
        """Block `index` of a request is full and computed, and its hash known. `is_new`: no block
        could be found by it before."""

    def evicted(self, group: int, prefix_hash: bytes) -> None:
        """A prefix can no longer be found."""

    def suspected(self, group: int, prefix_hash: bytes) -> None:
        """What a block holds may be wrong. That it is evicted is told too."""

    def cleared(self) -> None:
        """No prefix can be found any more."""


class HostUse(Protocol):
    """How full the host blocks are: the share in use, and the requests that lie there."""

    @property
    def usage(self) -> float: ...

    @property
    def num_requests(self) -> int: ...

    def take_released(self) -> list[int]:
        """Return the loads from elsewhere that are needed no more, once. Mutates: self"""


class KVAccounting(KVCache, Protocol):
    """The methods of the accounting that an engine calls, beside its scheduler's.

    Counts since the start: tokens of first allocations and those of them found in the prefix index,
    requests that went to host blocks, tokens that came back from there, and tokens that came from
    elsewhere.
    """

    num_queried_tokens: int
    num_hit_tokens: int
    num_swaps: int
    num_swapped_in_tokens: int
    num_loaded_tokens: int

    @property
    def host(self) -> HostUse: ...

    def blocks_of(self, request: RequestState) -> tuple[tuple[int, ...], ...]:
        """Return the request's block ids per group; nothing for one that owns none."""

    def watch(self, watcher: BlockWatcher) -> None:
        """Tell a watcher from now on what becomes of blocks."""

    def find_elsewhere(self, request: RequestState, has: Has) -> Found | None:
        """Return what `has` finds of a request beyond what is cached, None where that is nothing.
        Mutates: request.block_hashes"""

    def adopt(self, request: RequestState, found: Found, first: int) -> None:
        """Count blocks found elsewhere as the host blocks of a request that owns none: they were
        brought under the numbers from `first` on, in the order of `found.blocks`, all of them at
        least the layout's `num_host_blocks`."""

    @property
    def num_pinned_blocks(self) -> int:
        """Return how many blocks stay because requests asked for it; none of them is free."""

    def pin(self, request: RequestState, duration_s: float) -> None:
        """Keep what is cached of a request's prompt for a time, unless requests need the room."""

    def rekey(self, hash_key: bytes) -> None:
        """Hash with another key from now on, so that nothing named before is found by new
        requests."""

    def forget_all(self) -> None:
        """Make no cached prefix findable any more; what requests own stays theirs."""

    def check_invariants(self) -> None:
        """Raise AssertionError when blocks are lost or owned twice."""


class KVPolicy(Plugin):
    """Lays a cache out for a model's layers and keeps account of its blocks.

    Block 0 is the null block: it counts among a layout's blocks and is never handed out.
    """

    interface_version: ClassVar[int] = 1

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def plan(self, layers: Sequence[CachedLayer], room: KVRoom) -> KVLayout:
        """Return the layout. Raises: ConfigError when there is no room for two blocks."""

    @abstractmethod
    def accounting(self, layout: KVLayout, spec: CacheSpec, hash_key: bytes) -> KVAccounting:
        """Return the account of the blocks of a layout that the worker has created."""
