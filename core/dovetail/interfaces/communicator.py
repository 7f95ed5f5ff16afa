"""Communicator: how the ranks of one group exchange tensors.

One object is one rank's membership in one group. All ranks of the group make the same calls in the
same order with tensors of the same shape and dtype; every rank gets the same bits, because what the
ranks compute from them must stay the same.
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
"""The capability of communicators whose calls may be under way while a rank computes."""
JOIN_LIMIT_S = 120.0
"""How long the ranks of a group wait for one another when they join."""
CALL_LIMIT_S = 1800.0
"""How long a call waits for the other ranks; a rank that is gone is noticed long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorQuery:
    """What a communicator must do: `device` is the device type on which the tensors lie.

    `is_one_machine` says that all ranks run on this machine. With `wants_vendor` only the
    framework's or the vendor's library is wanted, none of dovetail's own.
    """

    device: str
    is_one_machine: bool
    wants_vendor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One rank's place in a group: `rank` of `size`, on a torch device.

    The ranks of all groups meet at `address`, a URL: file:///path or tcp://host:port; what follows
    a # tells apart engines that meet at one address, and `group` their groups. `is_host` is true
    for at most one rank of all who meet there: it opens the port, unless that is open already.
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
    """One rank's calls to a group; threads of a process make them one at a time, but for what was
    begun (`begin`). `why_not(CommunicatorQuery)` says where it fits.

    A call that cannot end, because another rank is gone, raises RuntimeError; the group cannot be
    used after that.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        OVERLAPS: "begin returns before the other ranks have made the call, and the call goes on "
        "while this rank computes",
    }

    @abstractmethod
    def __init__(self, options: Any, member: Membership) -> None:
        """Join the group; returns once all its ranks have. Raises: ConfigError when they cannot."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x, in x itself where it is contiguous. Mutates: x"""

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order. Shapes: x [..] -> [size, ..]"""

    @abstractmethod
    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`, in x itself where it is contiguous. Mutates: x"""

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's equal part of the sum of the ranks' x.

        The default sums everything. Shapes: x [size * N, ..] -> [N, ..]. Mutates: x
        """
        return self.all_reduce(x).chunk(self.size)[self.rank].clone()

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the ranks had for this one, in rank order; the i-th part of x is for rank i.

        The default gathers everything. Shapes: x [size * N, ..] -> [size * N, ..]
        """
        import torch

        parts = [whole.chunk(self.size)[self.rank] for whole in self.all_gather(x)]
        return torch.cat(parts)

    def send(self, x: torch.Tensor) -> None:
        """Give x to the other rank of a group of two, which calls `receive`; x may be written to
        on return. The default broadcasts it, and so waits for the other rank."""
        self.broadcast(x, self.rank)

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the other rank of a group of two sends, in x itself where it is contiguous.

        x has the shape and dtype of what is sent. Mutates: x
        """
        return self.broadcast(x, 1 - self.rank)

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks had for this one, in rank order; x has those for rank 0
        first. `counts[i][j]` rows go from rank i to rank j: the same table on every rank.

        The default sends parts as large as the largest. Shapes: x [rows sent, ..] -> [received, ..]
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
        """Begin what calls this group, one of its methods, and return what waits for the result.

        What the call reads stays as it is, and what it writes is not read, until that has returned.
        Several may have begun; they are made in the order in which they were begun, and all are
        waited for before a call that was not. The default has made it on return.
        """
        made = call()
        return lambda: made

    def barrier(self) -> None:
        """Return once all ranks have called it. The default sums a number."""
        import torch

        self.all_reduce(torch.zeros(1, device=self.device)).cpu()

    @abstractmethod
    def close(self) -> None:
        """Leave the group. May be called twice."""

    rank: int
    size: int
    device: str
