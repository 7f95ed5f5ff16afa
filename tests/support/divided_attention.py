"""DividedAttention: a backend whose cache is divided over ranks that are threads, seen as one.

For tests that compare it with an undivided one: `forward` takes and gives the heads of all ranks,
and a cache holds those of all ranks one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from msgspec import structs

from dovetail.interfaces.attention import AttentionBackend, AttentionCall, BatchLayout
from dovetail.interfaces.communicator import Communicator, Membership
from dovetail.parallel.context import ContextAttention
from dovetail.parallel.groups import Group

LIMIT_S = 30.0


class Meeting:
    """Where threads leave tensors for one another."""

    def __init__(self, size: int) -> None:
        self.left: list[torch.Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)


class ThreadCommunicator(Communicator):
    """A rank among threads of one process; `num_gathered` numbers came from the other ranks."""

    def __init__(self, options: Meeting, member: Membership) -> None:
        self._meeting = options
        self.rank, self.size, self.device = member.rank, member.size, member.device
        self.num_gathered = 0

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order."""
        self._meeting.left[self.rank] = x
        self._meeting.barrier.wait()
        found = torch.stack([one for one in self._meeting.left if one is not None])
        self._meeting.barrier.wait()
        self.num_gathered += (self.size - 1) * x.numel()
        return found

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x. Mutates: x"""
        return x.copy_(self.all_gather(x).sum(0))

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`. Mutates: x"""
        return x.copy_(self.all_gather(x)[source])

    def close(self) -> None:
        """Make the other ranks' calls end."""
        self._meeting.barrier.abort()


class DividedAttention(AttentionBackend):
    """All ranks at once. `backends` has one backend a rank."""

    def __init__(self, backends: Sequence[AttentionBackend]) -> None:
        super().__init__(None)
        self.size = len(backends)
        meeting = Meeting(self.size)
        members = [Membership(rank=r, size=self.size, address="") for r in range(self.size)]
        self.links = [ThreadCommunicator(meeting, member) for member in members]
        self.ranks = [
            ContextAttention(one, Group(rank=r, size=self.size, communicator=self.links[r]))
            for r, one in enumerate(backends)
        ]
        self._pool = ThreadPoolExecutor(self.size)

    def __enter__(self) -> DividedAttention:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what the ranks return."""
        return [one.result(LIMIT_S) for one in [self._pool.submit(call) for call in calls]]

    def kv_shape(
        self, num_blocks: int, block_tokens: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the shape of all ranks' caches together."""
        own = self.ranks[0].kv_shape(num_blocks, block_tokens, num_kv_heads, head_size)
        return (self.size, *own)

    def prepare(self, layout: BatchLayout) -> Any:
        """Return what each rank has prepared."""
        return [rank.prepare(layout) for rank in self.ranks]

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Return all heads' values, those of each rank as that rank has them. Mutates: cache"""
        spec, sinks = call.spec, call.sinks
        own = replace(spec, num_heads=spec.num_heads // self.size)
        parts = [None] * self.size if sinks is None else sinks.chunk(self.size)
        heads = call.q.chunk(self.size, dim=1)
        calls = [
            structs.replace(
                call, spec=own, q=q, cache=call.cache[r], prepared=call.prepared[r], sinks=parts[r]
            )
            for r, q in enumerate(heads)
        ]
        found = self.each(
            [partial(rank.forward, one) for rank, one in zip(self.ranks, calls, strict=True)]
        )
        return torch.cat(found, dim=1)
