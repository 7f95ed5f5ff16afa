"""GlooCommunicator: torch's gloo, over TCP, between CPUs of any machines.

Source: torch.distributed.ProcessGroupGloo.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from dovetail.interfaces.communicator import OVERLAPS, CommunicatorQuery, Membership
from dovetail.interfaces.plugin import Info
from dovetail_plugins.communicators._process_group import ProcessGroupCommunicator

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


class GlooCommunicator(ProcessGroupCommunicator):
    """CPUs of any machines; on one machine the loopback address is used."""

    info = Info(summary="torch's gloo, over TCP", requires=("torch",), devices=("cpu",))
    capabilities = frozenset({OVERLAPS})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why it does not fit a CommunicatorQuery."""
        if not isinstance(query, CommunicatorQuery) or query.device == "cpu":
            return []
        return [f"exchanges tensors of CPUs, not of {query.device}"]

    _sending: tuple[Any, Any] | None = None
    """The call in flight, and the copy that is read meanwhile."""

    def send(self, x: torch.Tensor) -> None:
        """Send x to the other rank of two; waits only for the previous send."""
        if self._sending is not None:
            self._sending[0].wait()
        copied = x.contiguous() if not x.is_contiguous() else x.clone()
        self._sending = self._calls().send([copied], 1 - self.rank, 0), copied

    _aside: ThreadPoolExecutor | None = None
    """Makes the calls that were begun, one after the other."""

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        """Begin a call in another thread, which mostly waits; return a function that awaits it."""
        import torch

        if self._aside is None:
            self._aside = ThreadPoolExecutor(1, f"dovetail-gloo-{self.rank}")
        mode = torch.is_inference_mode_enabled()

        def call_in_mode() -> T:
            with torch.inference_mode(mode):
                return call()

        return self._aside.submit(call_in_mode).result

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._sending = None
        if self._aside is not None:
            self._aside.shutdown(wait=False, cancel_futures=True)
            self._aside = None
        super().close()

    def _open(self, store: dist.Store, member: Membership) -> Any:
        return gloo_group(store, member)


def gloo_group(store: dist.Store, member: Membership) -> Any:
    """Return the process group of all ranks that meet at the store."""
    import torch.distributed as dist

    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=member.call_limit_s)
    options._devices = [_device(member)]
    return gloo(store, member.rank, member.size, options)


def _device(member: Membership) -> Any:
    """Return gloo's network device. Ranks that meet in a file are on one machine."""
    import torch.distributed as dist

    interface = os.environ.get(INTERFACE_VARIABLE)
    if interface:
        return dist.ProcessGroupGloo.create_device(interface=interface.split(",")[0])
    if member.address.startswith(("file:", f"tcp://{LOOPBACK}:")):
        return dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)
    return dist.ProcessGroupGloo.create_device(hostname=_address_toward(urlsplit(member.address)))


def _address_toward(meeting: SplitResult) -> str:
    """Return this machine's address on the network of the meeting place. It sends nothing."""
    assert meeting.hostname is not None, "ranks that do not meet in a file meet at a host"
    family, kind, protocol, _, there = socket.getaddrinfo(
        meeting.hostname, meeting.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)
        own: str = probe.getsockname()[0]
        return own
