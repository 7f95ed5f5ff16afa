"""LocalRanks: rank processes on this machine, and the sockets to them.

Each has two: orders and their answers, and what is said aside, which a thread here listens to. The
end of that second connection is how a rank's end is known, whatever ended it.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from dovetail.interfaces.spec import RunSpec, Selection
from dovetail.observability.logging import LogSettings, settings
from dovetail.process import Child, spawn
from dovetail.ranks.executor import Loss, RankListener
from dovetail.ranks.messages import Aside, LastWords, Prepared, RankBoot
from dovetail.ranks.wire import Wire, Wires

MODULE = "dovetail.ranks.rank_process"
OTHERS_WAIT_S = 0.1
"""How long the last words of other ranks are waited for once one has ended."""
STATUS_WAIT_S = 1.0


class Meeting:
    """A file where the ranks find one another. On Linux it has no name: nothing can stay behind."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self.descriptor: int | None = None
        if sys.platform == "linux":
            self.descriptor = os.memfd_create("dovetail-meeting")
            path = f"/proc/self/fd/{self.descriptor}"
        else:
            self._folder = tempfile.mkdtemp(prefix="dovetail-")
            path = f"{self._folder}/meeting"
        # The word behind the path tells apart the files of engines on one machine.
        self.address = f"file://{path}#{secrets.token_hex(8)}"

    def close(self) -> None:
        """Forget the file; ranks that have opened it are not disturbed. May be called twice."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class LocalRanks:
    """The links to ranks on this machine (`ranks.executor.RankLinks`)."""

    def __init__(self, runs: Sequence[RunSpec], worker: Selection) -> None:
        self._children: list[Child] = []
        self._meeting = Meeting()
        self._watcher: threading.Thread | None = None
        self._is_ending = False
        orders: list[socket.socket] = []
        try:
            for run in runs:
                child, connection = self._spawn(run, worker)
                self._children.append(child)
                orders.append(connection)
        except BaseException:
            for connection in orders:
                connection.close()
            self._end_children(0.0)
            raise
        finally:
            self._meeting.close()
        self._orders = Wires(orders)
        self._asides = [_channel_of(child) for child in self._children]

    def _spawn(self, run: RunSpec, worker: Selection) -> tuple[Child, socket.socket]:
        """Return a rank's process and this end of the connection for orders."""
        ours, theirs = socket.socketpair()
        with theirs:
            boot = RankBoot(
                run=run,
                worker=worker,
                address=self._meeting.address,
                orders=theirs.fileno(),
                log=_log_settings(run),
            )
            descriptor = self._meeting.descriptor
            shared = [] if descriptor is None else [descriptor]
            try:
                child = spawn(MODULE, boot, pass_fds=[theirs.fileno(), *shared], has_channel=True)
            except BaseException:
                ours.close()
                raise
        return child, ours

    @property
    def pids(self) -> list[int]:
        """Return the process id of each rank."""
        return [child.pid for child in self._children]

    def send(self, payload: bytes) -> None:
        """Send an order to every rank. Raises: OSError, EOFError when one is gone"""
        self._orders.send(payload)

    def send_to(self, numbers: Collection[int], payload: bytes) -> None:
        """Send an order to some ranks. Raises: OSError, EOFError when one is gone"""
        self._orders.send_to(numbers, payload)

    def receive(self, number: int) -> bytes:
        """Wait for one rank's next answer. Raises: OSError, EOFError when a rank is gone"""
        return self._orders.receive(number)

    def receive_any(self, numbers: Collection[int], deadline_s: float | None) -> int | None:
        """Wait for any answer (see RankLinks)."""
        return self._orders.receive_any(numbers, deadline_s)

    def tell(self, payload: bytes) -> None:
        """Send something aside to every rank. Raises: OSError when one is gone"""
        for wire in self._asides:
            wire.send(payload)

    def watch(self, listener: RankListener) -> None:
        """Tell from now on what comes aside, and which ranks end."""
        watcher = threading.Thread(
            target=self._watch, args=(listener,), name="ranks-watcher", daemon=True
        )
        watcher.start()
        self._watcher = watcher

    def _watch(self, listener: RankListener) -> None:
        """Listen until a rank ends."""
        decoder = msgspec.msgpack.Decoder(Aside)
        losses: dict[int, Loss] = {}
        deadline_s: float | None = None
        with selectors.DefaultSelector() as selector:
            for number, wire in enumerate(self._asides):
                selector.register(wire.connection, selectors.EVENT_READ, number)
            while selector.get_map():
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                for key, _ in selector.select(left_s):
                    wire = self._asides[key.data]
                    try:
                        wire.read()
                    except (EOFError, OSError):
                        selector.unregister(key.fileobj)
                        losses.setdefault(key.data, self._silent_loss(key.data))
                    while (payload := wire.take()) is not None:
                        message = decoder.decode(payload)
                        if isinstance(message, Prepared):
                            listener.on_prepared(key.data, message)
                        else:
                            losses[key.data] = _told_loss(key.data, message)
                if self._is_ending:
                    return
                if losses and deadline_s is None:
                    deadline_s = time.monotonic() + OTHERS_WAIT_S
        listener.on_losses(list(losses.values()))

    def _silent_loss(self, number: int) -> Loss:
        now_s = time.monotonic()
        status = None if self._is_ending else self._children[number].wait(STATUS_WAIT_S)
        how = f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}"
        elif status is None:
            how = "closed its connection"
        reason = f"rank {number} (process {self._children[number].pid}) {how}."
        return Loss(number=number, when_s=now_s, reason=reason, is_silent=True)

    def shut_down(self) -> None:
        """Make waiting calls end with an error; any thread may call this."""
        self._orders.shut_down()

    def end(self, grace_s: float) -> None:
        """End all ranks, by force after `grace_s`. May be called twice."""
        self._is_ending = True
        self._orders.shut_down()
        for wire in self._asides:  # which wakes the watcher
            wire.shut_down()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        self._end_children(grace_s)
        self._orders.close()

    def _end_children(self, grace_s: float) -> None:
        deadline_s = time.monotonic() + grace_s
        for child in self._children:
            child.wait(max(0.0, deadline_s - time.monotonic()))
        for child in self._children:
            child.close_parent_pipe()
        for child in self._children:
            child.end(0.0)


def _told_loss(number: int, words: LastWords) -> Loss:
    return Loss(number=number, when_s=words.when_s, reason=words.reason, is_silent=False)


def _channel_of(child: Child) -> Wire:
    assert child.channel is not None, "ranks are spawned with a channel"
    return Wire(child.channel)


def _log_settings(run: RunSpec) -> LogSettings | None:
    """Return how this process logs, with the rank's number before each line."""
    known = settings()
    if known is None:
        return None
    return replace(known, prefix=f"{known.prefix}[rank {run.rank.rank}] ")
