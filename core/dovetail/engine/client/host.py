"""EngineHost: how an API process starts an engine and learns of its end.

Either a child process or a thread of this process.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dovetail import process
from dovetail.engine import steps_together
from dovetail.engine.ipc.transport import (
    ClientEnd,
    MemoryLink,
    ZmqClientEnd,
    address_in,
    make_socket_folder,
)
from dovetail.engine.messages import Boot, Shutdown, ToEngine
from dovetail.errors import EngineDead
from dovetail.interfaces.spec import EngineSpec
from dovetail.observability.supervise import note_failure

logger = logging.getLogger(__name__)

KILL_WAIT_S = 5.0
# A child whose parent pipe is closed leaves at once; one that is stopped, or keeps the interpreter
# lock, never would.
LEAVE_WAIT_S = 1.0

OnExit = Callable[[str], None]
"""Told in words, in any thread, that the engine has ended."""


class EngineHost(Protocol):
    """Where the engine runs. `end` is this process's end of the transport."""

    end: ClientEnd

    def address_for(self, process: int) -> str | None:
        """Return how a further API process of this number, from 0, reaches the engine; None where
        none can."""

    def hand_over(self) -> None:
        """Leave to further API processes what was theirs, once all have started."""

    def watch(self, on_exit: OnExit) -> None:
        """Register a callback for the end of the engine."""

    def stop(self, timeout_s: float) -> None:
        """End the engine, by force after `timeout_s`. Blocks; may be called twice."""


class EngineProcess:
    """An engine in a child process. The caller is its parent: when it dies, the child does."""

    def __init__(self, spec: EngineSpec) -> None:
        self._folder = make_socket_folder(spec.socket_dir)
        self.address = address_in(self._folder)
        self._leftovers = [str(self._folder)]
        if spec.shares_experts:
            self._leftovers.append(spec.run.engines_folder)
        boot = Boot(spec=spec, addresses=(self.address,))
        try:
            self._child = process.spawn(
                "dovetail.engine.ipc.process",
                boot,
                variables=spec.variables,
                leftovers=self._leftovers,
            )
        except BaseException:
            self._remove_leftovers()
            raise
        atexit.register(self._tidy)
        self.end: ClientEnd = ZmqClientEnd(self.address)
        self._watcher: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Return the child's process id."""
        return self._child.pid

    def address_for(self, process: int) -> str:
        """Return the address of the engine's socket, which takes any number of processes."""
        return self.address

    def hand_over(self) -> None:
        """Nothing belongs to one API process alone."""

    def watch(self, on_exit: OnExit) -> None:
        """Ask to be told when the engine ends."""
        self._watcher = self._child.on_exit(lambda status: on_exit(how_it_ended(status)))

    def stop(self, timeout_s: float = KILL_WAIT_S) -> None:
        """End the child, by force after `timeout_s`. Blocks; may be called twice."""
        self.end.close()
        if self._child.wait(timeout_s) is None:
            logger.info("the engine process is busy after %.1f s; it is ended at once", timeout_s)
        self._tidy()
        self._child.end(LEAVE_WAIT_S)
        atexit.unregister(self._tidy)
        if self._watcher is not None:
            self._watcher.join(timeout_s)

    def _tidy(self) -> None:
        """Close the parent pipe, which ends the child at once, and remove the socket."""
        self._child.close_parent_pipe()
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for folder in self._leftovers:
            shutil.rmtree(folder, ignore_errors=True)


def how_it_ended(status: int) -> str:
    """Return the end of an engine process in words."""
    if status < 0:
        return f"the engine process was killed by signal {-status}."
    return f"the engine process ended with status {status}."


class EngineThread:
    """An engine in a thread of this process, for --disable-frontend-multiprocessing."""

    def __init__(self, spec: EngineSpec) -> None:
        from dovetail.engine import loop  # imports the engine side, which other processes lack

        self._link = MemoryLink()
        self.end: ClientEnd = self._link.client_end
        self._on_exit: OnExit | None = None
        self._reason: str | None = None
        self._lock = threading.Lock()
        self._run = loop.run
        self._thread = threading.Thread(target=self._main, args=(spec,), name="engine", daemon=True)
        self._thread.start()

    def _main(self, spec: EngineSpec) -> None:
        reason = "the engine thread ended by a fault; see the log."
        try:
            status = self._run(spec, self._link.engine_end)
            reason = f"the engine thread ended with status {status}."
        except Exception as error:
            note_failure("engine", error)
        with self._lock:
            self._reason = reason
            on_exit = self._on_exit
        if on_exit is not None:
            on_exit(reason)

    def address_for(self, process: int) -> None:
        """No other process reaches a thread."""

    def hand_over(self) -> None:
        """There are no other processes."""

    def watch(self, on_exit: OnExit) -> None:
        """Ask to be told when the engine ends."""
        with self._lock:
            self._on_exit = on_exit
            reason = self._reason
        if reason is not None:
            on_exit(reason)

    def stop(self, timeout_s: float = KILL_WAIT_S) -> None:
        """End the engine's thread after the step it is in. Blocks; may be called twice."""
        self.end.close()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the engine thread is still in a step after %.1f s", timeout_s)


def started(
    spec: EngineSpec, elsewhere: Sequence[EngineHost] = (), *, in_process: bool
) -> list[tuple[EngineSpec, EngineHost]]:
    """Return engines that begin to load, all or none, in processes of their own or in threads;
    behind them those that run elsewhere."""
    hosts: list[EngineHost] = []
    specs = _meeting(spec.each())
    try:
        for own in specs:
            hosts.append(EngineThread(own) if in_process else EngineProcess(own))
    except BaseException:
        for host in (*hosts, *elsewhere):
            host.stop(0.0)
        raise
    return list(zip(spec.every(), [*hosts, *elsewhere], strict=True))


def _meeting(specs: Sequence[EngineSpec]) -> Sequence[EngineSpec]:
    """Return the specs with a new folder in which engines that share experts meet; they end
    together, and each removes it."""
    if not any(spec.shares_experts for spec in specs):
        return specs
    folder = make_socket_folder(specs[0].socket_dir)
    steps_together.create(folder, len(specs))
    return [
        msgspec.structs.replace(
            spec, run=msgspec.structs.replace(spec.run, engines_folder=str(folder))
        )
        for spec in specs
    ]


def say_shutdown(end: ClientEnd) -> None:
    """Ask the engine to end; one that is gone already is fine."""
    message: ToEngine = Shutdown()
    try:
        end.send(message)
    except EngineDead:
        logger.debug("no shutdown message: the engine is gone")


async def closed(host: EngineHost, timeout_s: float) -> None:
    """Ask an engine to end and wait for it without blocking the event loop."""
    say_shutdown(host.end)
    host.end.close()
    await asyncio.get_running_loop().run_in_executor(None, host.stop, timeout_s)
