"""NcclCommunicator: NVIDIA's collectives between GPUs, one for each rank.

Source: torch.distributed.ProcessGroupNCCL.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.errors import with_fix
from dovetail.interfaces.communicator import OVERLAPS, CommunicatorQuery, Membership
from dovetail.interfaces.plugin import Info
from dovetail_plugins.communicators._process_group import ProcessGroupCommunicator

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

T = TypeVar("T")


class NcclCommunicator(ProcessGroupCommunicator):
    """GPUs of any machines; calls are queued on the current stream, begun ones on a separate stream
    that waits for the calls queued before."""

    info = Info(summary="NVIDIA's NCCL", requires=("torch",), devices=("cuda",))
    capabilities = frozenset({OVERLAPS})
    _aside: torch.cuda.Stream | None = None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why NCCL cannot be used here."""
        reason = super().unavailable_reason()
        if reason is not None:
            return reason
        if metadata.version("torch").endswith("+cpu"):
            return with_fix("the installed torch has no NCCL", "install a torch with CUDA")
        return None

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why it does not fit a CommunicatorQuery."""
        if not isinstance(query, CommunicatorQuery) or query.device == "cuda":
            return []
        return [f"exchanges tensors of NVIDIA GPUs, not of {query.device}"]

    def _open(self, store: dist.Store, member: Membership) -> Any:
        import torch

        group = nccl_group(store, member)
        group.eager_connect_single_device(torch.device(member.device))
        return group

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        """Queue a call on the stream of exchanges; the returned function makes the current stream
        wait for it, and never the host.

        Memory allocated by the call belongs to that stream and is returned to it. Only a later call
        can reuse it, and that waits for all readers here; it is recorded anyway, for readers on a
        third stream.
        """
        import torch

        device = torch.device(self.device)
        if self._aside is None:
            self._aside = torch.cuda.Stream(device)
        aside = self._aside
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            result = call()
            is_made = aside.record_event()

        def finish() -> T:
            current = torch.cuda.current_stream(device)
            current.wait_event(is_made)
            if isinstance(result, torch.Tensor):
                result.record_stream(current)
            return result

        return finish

    def close(self) -> None:
        """Leave the group. May be called twice."""
        if self._group is not None:
            self._group.shutdown()
        super().close()


def nccl_group(store: dist.Store, member: Membership) -> Any:
    """Return the process group of all ranks that meet at the store, connected at the first call."""
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=member.call_limit_s)
    return dist.ProcessGroupNCCL(store, member.rank, member.size, options)
