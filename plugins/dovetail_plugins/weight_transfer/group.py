"""A process group of a trainer, rank 0, and of the ranks of engines, which receive its tensors.

The ranks meet at a store on the trainer's machine. Names in the store are those that trainers use
which make the group with torch's own functions, as for SGLang: torch.distributed.rendezvous and
then `_new_process_group_helper` with a PrefixStore of the group's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dovetail.errors import RequestError
from dovetail.interfaces.communicator import Membership
from dovetail_plugins.communicators.gloo import gloo_group
from dovetail_plugins.communicators.nccl import nccl_group

NAME = "weight_update_group"
BACKENDS = {"gloo": "cpu", "nccl": "cuda"}
"""The groups of torch, and the device of their tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where `world_size` ranks meet, and how long one waits for the others: when they meet, and for
    each tensor."""

    address: str
    port: int
    world_size: int
    name: str = NAME
    backend: str = "gloo"
    timeout_s: float = 60.0


class TransferGroup:
    """One rank of a group."""

    def __init__(self, group: Any, device: str) -> None:
        self._group = group
        self.device = device

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fill a contiguous tensor on the group's device with that of rank 0. Raises: RuntimeError
        if the others do not take part in time. Mutates: tensor"""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor], options).wait()

    def close(self) -> None:
        """Leave the group. May be called twice."""
        group, self._group = self._group, None
        if group is not None and self.device == "cuda":
            group.shutdown()


def host(meeting: Meeting, device: str = "cuda") -> TransferGroup:
    """Return the group as its rank 0, a trainer, once all have come. Raises: RequestError"""
    return _opened(meeting, True, 0, "", device)


def join(meeting: Meeting, offset: int, ticket: str, device: str) -> TransferGroup:
    """Return the group as a rank of an engine, once all have come. The ranks with one ticket are
    numbered from `offset` on, in the order in which they come. Raises: RequestError"""
    return _opened(meeting, False, offset, ticket, device)


def _opened(
    meeting: Meeting, is_host: bool, offset: int, ticket: str, device: str
) -> TransferGroup:
    limit = timedelta(seconds=meeting.timeout_s)
    place = device if BACKENDS[meeting.backend] == "cuda" else "cpu"
    try:
        root = dist.TCPStore(
            meeting.address, meeting.port, meeting.world_size, is_host, timeout=limit
        )
        rank = 0 if is_host else offset + root.add(f"dovetail/{ticket}", 1) - 1
        if rank >= meeting.world_size:
            raise ValueError(f"the group of {meeting.world_size} has no rank {rank}")
        store = dist.PrefixStore(f"{meeting.name}/", dist.PrefixStore(meeting.name, root))
        member = Membership(
            rank=rank,
            size=meeting.world_size,
            address=f"tcp://{meeting.address}:{meeting.port}",
            device=place,
            call_limit_s=meeting.timeout_s,
        )
        kind = torch.device(place).type
        group = OPENERS[meeting.backend](dist.PrefixStore(f"{kind}/", store), member)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RequestError(
            f"{meeting.world_size} ranks did not meet at {meeting.address}:{meeting.port} within "
            f"{meeting.timeout_s:g} s: {reason}.",
            where="master_address",
            fix="check the address and world_size: the trainer, and every rank of every engine.",
            status=504,
        ) from error
    return TransferGroup(group, kind)


OPENERS = {"gloo": gloo_group, "nccl": nccl_group}
