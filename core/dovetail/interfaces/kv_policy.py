"""KVPolicy: how the KV cache is laid out, and how its blocks are handed out.

A scheduler asks the accounting that a policy makes; the worker fills the blocks that it names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
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


class HostUse(Protocol):
    """How full the host blocks are: the share in use, and the requests that lie there."""

    @property
    def usage(self) -> float: ...

    @property
    def num_requests(self) -> int: ...


class KVAccounting(KVCache, Protocol):
    """The methods of the accounting that an engine calls, beside its scheduler's.

    Counts since the start: tokens of first allocations and those of them found in the prefix index,
    requests that went to host blocks, and tokens that came back from there.
    """

    num_queried_tokens: int
    num_hit_tokens: int
    num_swaps: int
    num_swapped_in_tokens: int

    @property
    def host(self) -> HostUse: ...

    def blocks_of(self, request: RequestState) -> tuple[tuple[int, ...], ...]:
        """Return the request's block ids per group; nothing for one that owns none."""

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
