"""LocalRanks: rank processes on this machine, and the connections to them."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.processes.process import Child, spawn
from dovetail_kernels.byte_pipe import Pipes, missing_reason
from dovetail_plugins.ranks.layout import rank_log
from dovetail_plugins.ranks.links import WiredLinks
from dovetail_plugins.ranks.messages import Orders, RankBoot
from dovetail_plugins.ranks.wire import Wires, shared_wires, socket_wires

logger = logging.getLogger(__name__)

MODULE = "dovetail_plugins.ranks.rank_process"
STATUS_WAIT_S = 1.0


class RendezvousFile:
    """A file for the ranks' rendezvous. On Linux it is anonymous, so nothing is left over."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self.descriptor: int | None = None
        if sys.platform == "linux":
            self.descriptor = os.memfd_create("dovetail-meeting")
            path = f"/proc/self/fd/{self.descriptor}"
        else:
            self._folder = tempfile.mkdtemp(prefix="dovetail-")
            path = f"{self._folder}/meeting"
        # The word after the path tells apart the files of engines on one machine.
        self.address = f"file://{path}#{secrets.token_hex(8)}"

    def close(self) -> None:
        """Forget the file; ranks that have opened it are not disturbed. May be called twice."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class LocalRanks(WiredLinks):
    """The links to ranks on this machine: orders and answers go through shared memory, or through
    sockets if that is unavailable."""

    def __init__(self, runs: Sequence[RunSpec], worker: Selection) -> None:
        self._children: list[Child] = []
        with closing(RendezvousFile()) as meeting:
            try:
                orders = self._start(runs, worker, meeting)
            except BaseException:
                self._end_ranks(0.0)
                raise
        super().__init__(orders, [channel_of(child) for child in self._children])

    def _start(self, runs: Sequence[RunSpec], worker: Selection, meeting: RendezvousFile) -> Wires:
        """Start all ranks; return the connections for orders. Mutates: self"""
        shared = () if meeting.descriptor is None else (meeting.descriptor,)
        if reason := missing_reason():
            logger.info("plans go through sockets: %s", reason)
            return self._start_with_sockets(runs, worker, meeting.address, shared)
        descriptor = Pipes.create(len(runs))
        try:
            for run in runs:
                orders = Orders(descriptor, is_shared=True)
                child = spawn_rank(run, worker, meeting.address, orders, shared=shared)
                self._children.append(child)
            return shared_wires(Pipes(descriptor, len(runs)))
        finally:
            os.close(descriptor)

    def _start_with_sockets(
        self, runs: Sequence[RunSpec], worker: Selection, address: str, shared: Sequence[int]
    ) -> Wires:
        with ExitStack() as stack:
            ours: list[socket.socket] = []
            for run in runs:
                one, theirs = socket.socketpair()
                ours.append(stack.enter_context(one))
                with theirs:
                    orders = Orders(theirs.fileno())
                    self._children.append(spawn_rank(run, worker, address, orders, shared=shared))
            stack.pop_all()
        return socket_wires(ours)

    @property
    def pids(self) -> list[int]:
        """Return the process id of each rank."""
        return [child.pid for child in self._children]

    def _how_it_ended(self, number: int) -> str:
        return how_child_ended(number, self._children[number])

    def _end_ranks(self, grace_s: float) -> None:
        end_children(self._children, grace_s)


def spawn_rank(
    run: RunSpec,
    worker: Selection,
    address: str,
    orders: Orders,
    *,
    is_open: bool = False,
    shared: Sequence[int] = (),
) -> Child:
    """Return a rank's process, which gets its orders by a descriptor. The ranks meet at `address`
    (see RankTask); the process inherits the descriptors `shared`."""
    boot = RankBoot(
        run=run,
        worker=worker,
        address=address,
        is_open=is_open,
        orders=orders,
        log=rank_log(run.rank.rank),
    )
    return spawn(MODULE, boot, pass_fds=[orders.descriptor, *shared], has_channel=True)


def how_child_ended(number: int, child: Child) -> str:
    """Return how a rank's process ended, as a sentence."""
    status = child.wait(STATUS_WAIT_S)
    how = f"ended with status {status}"
    if status is not None and status < 0:
        how = f"was killed by signal {-status}"
        if -status == signal.SIGKILL:
            how += ", as the system does where memory runs out (its log says so)"
    elif status is None:
        how = "closed its connection"
    return f"rank {number} (process {child.pid}) {how}."


def end_children(children: Sequence[Child], grace_s: float) -> None:
    """See processes end, by force after `grace_s`. May be called twice."""
    deadline_s = time.monotonic() + grace_s
    for child in children:
        child.wait(max(0.0, deadline_s - time.monotonic()))
    for child in children:
        child.close_parent_pipe()
    for child in children:
        child.end(0.0)


def channel_of(child: Child) -> socket.socket:
    """Return the socket of the side connection to a rank's process."""
    assert child.channel is not None, "ranks are spawned with a channel"
    return child.channel
