"""ProcessGroupCommunicator: shared base of communicators over one of torch's process groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.communicator import Communicator, Membership
from dovetail_plugins.communicators._meeting import meet, unreachable

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class ProcessGroupCommunicator(Communicator):
    """Passes every call on to its own process group, separate from torch's global one."""

    def __init__(self, options: Any, member: Membership) -> None:
        self.options = options
        self.rank, self.size, self.device = member.rank, member.size, member.device
        store = meet(member)
        try:
            self._group: Any = self._open(store, member)
            self.barrier()
        except RuntimeError as error:
            raise unreachable(member, error) from error

    @abstractmethod
    def _open(self, store: dist.Store, member: Membership) -> Any:
        """Return the process group of all ranks that meet at the store."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x. Mutates: x"""
        whole = x.contiguous()
        self._calls().allreduce([whole]).wait()
        return whole

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order. Shapes: x [..] -> [size, ..]"""
        out = x.new_empty((self.size, *x.shape))
        self._calls().allgather([list(out.unbind())], [x.contiguous()]).wait()
        return out

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`. Mutates: x"""
        from torch.distributed import BroadcastOptions

        whole = x.contiguous()
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._calls().broadcast([whole], options).wait()
        return whole

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' parts for this one. Shapes: x [size * N, ..] -> [size * N, ..]"""
        out = x.new_empty(x.shape)
        self._calls().alltoall_base(out, x.contiguous(), [], []).wait()
        return out

    def send(self, x: torch.Tensor) -> None:
        """Give x to the other rank of two."""
        self._calls().send([x.contiguous()], 1 - self.rank, 0).wait()

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor sent by the other of two ranks. Mutates: x"""
        whole = x.contiguous()
        self._calls().recv([whole], 1 - self.rank, 0).wait()
        return whole

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks had for this one.

        Shapes: x [rows sent, ..] -> [received, ..]
        """
        received = [row[self.rank] for row in counts]
        out = x.new_empty((sum(received), *x.shape[1:]))
        if any(map(any, counts)):
            sent = list(counts[self.rank])
            self._calls().alltoall_base(out, x.contiguous(), received, sent).wait()
        return out

    def _calls(self) -> Any:
        """Return the process group, whose calls a recorded step would leave out.

        Raises: NotRecordable while one is recorded
        """
        from dovetail_kernels.cpu.program import refuse_recording

        refuse_recording("ranks exchange tensors by torch's process group")
        return self._group

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._group = None
