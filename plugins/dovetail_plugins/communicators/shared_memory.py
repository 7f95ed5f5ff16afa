"""SharedMemoryCommunicator: the ranks of one machine's CPUs, by native kernels on shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import Communicator, CommunicatorQuery, Membership
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryOptions:
    """Options of shared_memory."""

    capacity_bytes: int = field(
        default=1 << 20,
        metadata={"help": "memory of one rank; larger tensors go through it in chunks"},
    )
    spin_us: int | None = field(
        default=None,
        metadata={
            "help": "time that a rank waits actively for another before it sleeps, in "
            "microseconds; none with more ranks than processors"
        },
    )


class SharedMemoryCommunicator(Communicator):
    """Sums in float32 in the order of the ranks; steps that call it can be recorded."""

    info = Info(summary="native kernels on memory that the ranks share", devices=("cpu",))
    auto_rank = 10
    Options = SharedMemoryOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why it does not fit a CommunicatorQuery."""
        if not isinstance(query, CommunicatorQuery):
            return []
        if query.device != "cpu":
            return [f"exchanges tensors of CPUs, not of {query.device}"]
        reasons = []
        if not query.is_one_machine:
            reasons.append("the ranks run on several machines")
        if query.wants_vendor:
            reasons.append("--disable-custom-all-reduce leaves only torch's own")
        return reasons or _missing()

    def __init__(self, options: Any, member: Membership) -> None:
        from dovetail_kernels.collective import RankError, SharedMemoryRanks

        self.options = options
        self.rank, self.size, self.device = member.rank, member.size, member.device
        try:
            self._ranks = SharedMemoryRanks(
                f"{member.address} {member.group}",
                rank=member.rank,
                size=member.size,
                capacity_bytes=options.capacity_bytes,
                timeout_s=member.call_limit_s,
                join_timeout_s=member.join_limit_s,
                spin_us=options.spin_us,
            )
        except (OSError, RankError) as error:
            raise ConfigError(
                f"rank {member.rank} of {member.size} could not join the others: {error}.",
                where="--communicator",
                fix="see the other ranks' log lines, or use --communicator gloo.",
            ) from error

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x. Mutates: x"""
        if x.dtype not in _summed_dtypes():
            return x.copy_(self._ranks.all_gather(x).sum(0, dtype=x.dtype))
        return self._ranks.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order. Shapes: x [..] -> [size, ..]"""
        return self._ranks.all_gather(x)

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`. Mutates: x"""
        return self._ranks.broadcast(x, source)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum. Shapes: x [size * N, ..] -> [N, ..]"""
        return self._ranks.reduce_scatter(x.unflatten(0, (self.size, -1)))

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' parts for this one. Shapes: x [size * N, ..] -> [size * N, ..]"""
        import torch

        return torch.cat(self._ranks.all_to_all(x.chunk(self.size)))

    def send(self, x: torch.Tensor) -> None:
        """Give x to the other rank of two."""
        self._ranks.send(x)

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor sent by the other of two ranks. Mutates: x"""
        return self._ranks.receive(x)

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks had for this one.

        Shapes: x [rows sent, ..] -> [received, ..]
        """
        import torch

        return torch.cat(self._ranks.all_to_all(x.split(list(counts[self.rank])), counts))

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        self._ranks.barrier()

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._ranks.close()


def _missing() -> list[str]:
    from dovetail_kernels.cpu.library import missing_reason

    reason = missing_reason()
    return [] if reason is None else [reason]


def _summed_dtypes() -> Any:
    from dovetail_kernels.collective.native import DTYPES

    return DTYPES
