"""NcclCommunicator: NVIDIA's collectives between GPUs, one for each rank.

Source: torch.distributed.ProcessGroupNCCL.
"""

from __future__ import annotations

from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any

from dovetail.errors import with_fix
from dovetail.interfaces.communicator import CommunicatorQuery, Membership
from dovetail.interfaces.plugin import Info
from dovetail_plugins.communicators._process_group import ProcessGroupCommunicator

if TYPE_CHECKING:
    import torch.distributed as dist


class NcclCommunicator(ProcessGroupCommunicator):
    """GPUs of any machines; calls are queued on the current stream."""

    info = Info(summary="NVIDIA's NCCL", requires=("torch",), devices=("cuda",))

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
        import torch.distributed as dist

        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=member.call_limit_s)
        group = dist.ProcessGroupNCCL(store, member.rank, member.size, options)
        group.eager_connect_single_device(torch.device(member.device))
        return group

    def close(self) -> None:
        """Leave the group. May be called twice."""
        if self._group is not None:
            self._group.shutdown()
        super().close()
