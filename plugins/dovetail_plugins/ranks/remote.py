"""A rank that joined its executor's RankListener: its process is not a child of the engine's.

It ends when the executor is gone, also while it waits for other ranks within a step.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

from dovetail.engine.affinity import keep_to
from dovetail.processes.process import EXIT_PARENT_GONE
from dovetail_plugins.ranks.connection import SocketConnection
from dovetail_plugins.ranks.messages import RankTask
from dovetail_plugins.ranks.rank_process import SWITCH_S, RankServer, orders_wire
from dovetail_plugins.ranks.wire import Wire

GONE_WAIT_S = 1.0
"""How long a step may continue once the executor is gone."""
LOOK_PERIOD_S = 0.25


class RemoteRankServer(RankServer):
    """Takes the whole process down when a step keeps it from ending."""

    def __init__(self, task: RankTask, orders: Wire, aside: Wire) -> None:
        super().__init__(task, orders, aside)
        self._done = threading.Event()

    def serve(self) -> int:
        """Carry out orders until there are no more; return the exit status."""
        try:
            return super().serve()
        finally:
            self._done.set()

    def _on_executor_gone(self) -> None:
        if not self._done.wait(GONE_WAIT_S):
            os._exit(EXIT_PARENT_GONE)


def serve_remote(task: RankTask, connections: Sequence[socket.socket]) -> int:
    """Be the rank of a task until the executor ends; return the exit status."""
    sys.setswitchinterval(SWITCH_S)
    keep_to(task.run.processors)
    orders, aside = connections
    server = RemoteRankServer(
        task, orders_wire(SocketConnection(orders), task.run), Wire(SocketConnection(aside))
    )
    try:
        return server.serve()
    finally:
        orders.close()  # the other one ends with the process, and thereby reports its end


def _await_end(pid: int) -> None:
    """Return when a process has ended; immediately on systems that cannot tell."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)


def on_launcher_gone(call: Callable[[], None]) -> None:
    """Run a callback, in its own thread, when the process that started this one is gone."""
    parent = os.getppid()

    def watch() -> None:
        _await_end(parent)
        while os.getppid() == parent:
            time.sleep(LOOK_PERIOD_S)
        call()

    threading.Thread(target=watch, name="launcher-watcher", daemon=True).start()
