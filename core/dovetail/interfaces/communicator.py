"""Communicator: how the ranks of one group exchange tensors.

One object is one rank's membership in one group. All ranks of the group make the same calls in the
same order, with tensors of the same shape and dtype. Every rank gets bitwise identical results, so
that the ranks' computations stay identical.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

OVERLAPS = "overlaps"
"""The capability of communicators whose calls can run while the rank computes."""
JOIN_LIMIT_S = 120.0
"""How long the ranks of a group wait for each other when they join."""
CALL_LIMIT_S = 1800.0
"""How long a call waits for the other ranks; a dead rank is noticed long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorQuery:
    """The requirements on a communicator: `device` is the device type of the tensors.

    `is_one_machine`: all ranks run on this machine. With `wants_vendor` only the framework's or the
    vendor's library is wanted, none of dovetail's own.
    """

    device: str
    is_one_machine: bool
    wants_vendor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One rank's membership in a group: `rank` of `size`, on a torch device.

    The ranks of all groups meet at `address`, a URL: file:///path or tcp://host:port. A #suffix
    separates engines that meet at one address; `group` separates their groups. `is_host` is true
    for at most one of the ranks that meet there: it opens the port, unless it is already open.
    """

    rank: int
    size: int
    address: str
    group: str = "world"
    is_host: bool = False
    device: str = "cpu"
    join_limit_s: float = JOIN_LIMIT_S
    call_limit_s: float = CALL_LIMIT_S


class Communicator(Plugin):
    """One rank's calls to a group. The threads of a process make them one at a time, except for
    those started by `begin`. `why_not(CommunicatorQuery)` says whether it fits.

    A call that cannot complete because another rank has died raises RuntimeError; the group is then
    unusable.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        OVERLAPS: "begin returns before the other ranks have made the call, and the call goes on "
        "while this rank computes",
    }

    @abstractmethod
    def __init__(self, options: Any, member: Membership) -> None:
        """Join the group; returns once all ranks have. Raises: ConfigError when they cannot."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x, in x itself if it is contiguous. Mutates: x"""

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order. Shapes: x [..] -> [size, ..]"""

    @abstractmethod
    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`, in x itself if it is contiguous. Mutates: x"""

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's equal part of the sum of the ranks' x.

        The default sums everything. Shapes: x [size * N, ..] -> [N, ..]. Mutates: x
        """
        return self.all_reduce(x).chunk(self.size)[self.rank].clone()

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the ranks sent to this one, in rank order; the i-th part of x is for rank i.

        The default gathers everything. Shapes: x [size * N, ..] -> [size * N, ..]
        """
        import torch

        parts = [whole.chunk(self.size)[self.rank] for whole in self.all_gather(x)]
        return torch.cat(parts)

    def send(self, x: torch.Tensor) -> None:
        """Send x to the other rank of a group of two, which calls `receive`; x may be overwritten
        on return. The default broadcasts it, and so waits for the other rank."""
        self.broadcast(x, self.rank)

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the other rank of a group of two sends, in x itself if it is contiguous.

        x has the shape and dtype of what is sent. Mutates: x
        """
        return self.broadcast(x, 1 - self.rank)

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks sent to this one, in rank order; x begins with the rows
        for rank 0. `counts[i][j]` rows go from rank i to rank j: the same table on every rank.

        The default pads all parts to the largest. Shapes: x [rows sent, ..] -> [received, ..]
        """
        import torch

        size, largest = self.size, max(map(max, counts))
        sent, received = counts[self.rank], [row[self.rank] for row in counts]
        if not largest:
            return x[:0]
        padded = x.new_zeros((size * largest, *x.shape[1:]))
        for rank, part in enumerate(x.split_with_sizes(list(sent))):
            padded[rank * largest : rank * largest + len(part)] = part
        parts = self.all_to_all(padded).chunk(size)
        return torch.cat([part[:count] for part, count in zip(parts, received, strict=True)])

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        """Start `call`, which calls this group; return a function that waits for the result.

        Until that returns, the call's inputs must not change and its outputs must not be read.
        Several calls may be started; they run in that order, and must be waited for before a call
        without `begin`. Default: the call is complete on return.
        """
        result = call()
        return lambda: result

    def barrier(self) -> None:
        """Return once all ranks have called it. The default all-reduces a number."""
        import torch

        self.all_reduce(torch.zeros(1, device=self.device)).cpu()

    @abstractmethod
    def close(self) -> None:
        """Leave the group. May be called twice."""

    rank: int
    size: int
    device: str
