"""ThreadRanks: ranks that are threads of this process, for tests of communication between ranks.

They exchange data through a list. Each counts the bytes it would have sent to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import TracebackType
from typing import Any, TypeVar

import torch

from dovetail.interfaces.communicator import Communicator, Membership
from dovetail.interfaces.plugin import Info

T = TypeVar("T")
LIMIT_S = 20.0


class ThreadCommunicator(Communicator):
    """One thread's calls. `num_bytes` counts the bytes sent to other ranks."""

    info = Info(summary="test communicator: threads of one process", devices=("cpu",))

    def __init__(self, options: Any, member: Membership) -> None:
        self.rank, self.size, self.device = member.rank, member.size, "cpu"
        self.num_bytes = 0
        self.shared: list[torch.Tensor] = []
        self.meeting: Barrier | None = None

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order. Shapes: x [..] -> [size, ..]"""
        self.num_bytes += (self.size - 1) * x.nbytes
        return torch.stack(self._exchange(x))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x, in x itself if it is contiguous. Mutates: x"""
        self.num_bytes += 2 * (self.size - 1) * x.nbytes // self.size
        return x.copy_(torch.stack(self._exchange(x)).sum(0, dtype=x.dtype))

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum. Shapes: x [size * N, ..] -> [N, ..]"""
        self.num_bytes += (self.size - 1) * x.nbytes // self.size
        return torch.stack(self._exchange(x)).sum(0, dtype=x.dtype).chunk(self.size)[self.rank]

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`. Mutates: x"""
        self.num_bytes += x.nbytes if self.rank == source else 0
        return x.copy_(self._exchange(x)[source])

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks had for this one."""
        parts = x.split_with_sizes(list(counts[self.rank]))
        self.num_bytes += sum(p.nbytes for r, p in enumerate(parts) if r != self.rank)
        pairs = zip(self._exchange(x), counts, strict=True)
        return torch.cat([whole.split_with_sizes(list(row))[self.rank] for whole, row in pairs])

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return what every thread has given."""
        assert self.meeting is not None, "made by ThreadRanks"
        self.shared[self.rank] = x.clone()
        self.meeting.wait()
        found = list(self.shared)
        self.meeting.wait()
        return found

    def close(self) -> None:
        """Wake the threads that wait for this one."""
        if self.meeting is not None:
            self.meeting.abort()


class ThreadRanks:
    """The ranks of one group. Use it with `with`."""

    def __init__(self, size: int) -> None:
        self.members: list[ThreadCommunicator] = []
        meeting, shared = Barrier(size, timeout=LIMIT_S), [torch.empty(0)] * size
        for rank in range(size):
            member = ThreadCommunicator(None, Membership(rank=rank, size=size, address=""))
            member.meeting, member.shared = meeting, shared
            self.members.append(member)
        self._pool = ThreadPoolExecutor(size)

    def __enter__(self) -> ThreadRanks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for member in self.members:
            member.close()
        self._pool.shutdown()

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Return the results of all ranks' threads, which run concurrently; an exception in one
        ends the others' waiting. Raises: the first exception of a thread"""

        def guarded(rank: int) -> T:
            try:
                return work(rank)
            except BaseException:
                self.members[rank].close()
                raise

        futures = [self._pool.submit(guarded, member.rank) for member in self.members]
        errors = [error for error in (f.exception(LIMIT_S) for f in futures) if error is not None]
        real = [error for error in errors if type(error).__name__ != "BrokenBarrierError"]
        if errors:
            raise (real or errors)[0]
        return [future.result() for future in futures]
