"""EngineHost: how an API process starts an engine and learns of its end.

The engine is either a child process or a thread of this process.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from dovetail.engine.ipc.transport import (
    ClientEnd,
    MemoryLink,
    ZmqClientEnd,
    address_in,
    make_socket_folder,
)
from dovetail.engine.messages import Boot, Shutdown
from dovetail.engine.parts import steps_together
from dovetail.errors import EngineDead
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.observability.supervise import note_failure
from dovetail.processes import process

logger = logging.getLogger(__name__)

KILL_WAIT_S = 5.0
# A child exits when its parent pipe closes, unless it is stopped or holds the interpreter lock.
LEAVE_WAIT_S = 1.0

OnExit = Callable[[str], None]
"""Called from any thread with a description of the engine's end."""


class EngineHost(Protocol):
    """The process or thread of an engine. `end` is this process's end of the transport. With a
    `restart_refusal` the engine is not started again, for that reason. With an `absence` there is
    none yet, for that reason: it may join later."""

    end: ClientEnd
    restart_refusal: str
    absence: str

    def address_for(self, process: int) -> str | None:
        """Return the address for API process number `process`, from 0; None if there is none."""

    def hand_over(self) -> None:
        """Leave their connections to the other API processes once all have started."""

    def watch(self, on_exit: OnExit) -> None:
        """Register a callback for the end of the engine."""

    def stop(self, timeout_s: float) -> None:
        """Stop the engine, by force after `timeout_s`. Blocks; may be called twice."""


class EngineProcess:
    """An engine in a child process, which dies when this parent process dies. Its socket is in a
    new folder, or in that of an `earlier` process, which has been stopped."""

    restart_refusal = absence = ""

    def __init__(self, spec: EngineSpec, earlier: EngineProcess | None = None) -> None:
        folder = make_socket_folder(spec.socket_dir) if earlier is None else earlier._folder
        self._folder: Path = folder
        self._folder.mkdir(0o700, exist_ok=earlier is None)
        self.address = address_in(self._folder)
        self._leftovers = [str(self._folder)]
        if spec.shares_experts:
            self._leftovers.append(spec.run.engines_folder)
        boot = Boot(spec=spec, addresses=(self.address,))
        try:
            self._child = process.spawn(
                "dovetail.engine.process",
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
        """Return the address of the engine's socket, which accepts any number of processes."""
        return self.address

    def hand_over(self) -> None:
        """Do nothing: all API processes share one socket."""

    def watch(self, on_exit: OnExit) -> None:
        """Register a callback for the end of the engine."""
        self._watcher = self._child.on_exit(lambda status: on_exit(how_it_ended(status)))

    def stop(self, timeout_s: float = KILL_WAIT_S) -> None:
        """Stop the child, by force after `timeout_s`. Blocks; may be called twice."""
        self.end.close()
        if self._child.wait(timeout_s) is None:
            logger.info("the engine process is busy after %.1f s; it is ended at once", timeout_s)
        self._tidy()
        self._child.end(LEAVE_WAIT_S)
        atexit.unregister(self._tidy)
        if self._watcher is not None:
            self._watcher.join(timeout_s)

    def _tidy(self) -> None:
        """Close the parent pipe, which ends the child immediately, and remove the socket."""
        self._child.close_parent_pipe()
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for folder in self._leftovers:
            shutil.rmtree(folder, ignore_errors=True)


def how_it_ended(status: int) -> str:
    """Return a description of how an engine process ended."""
    if status < 0:
        return f"the engine process was killed by signal {-status}."
    return f"the engine process ended with status {status}."


class EngineThread:
    """An engine in a thread of this process, for --disable-frontend-multiprocessing."""

    restart_refusal = "It is a thread of the server, which is not started again."
    absence = ""

    def __init__(self, spec: EngineSpec) -> None:
        from dovetail.engine import loop  # imports the engine side, which other API processes lack

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
        """Return None: no other process can reach a thread."""

    def hand_over(self) -> None:
        """Do nothing: this engine is a thread, so no process takes it over."""

    def watch(self, on_exit: OnExit) -> None:
        """Register a callback for the end of the engine."""
        with self._lock:
            self._on_exit = on_exit
            reason = self._reason
        if reason is not None:
            on_exit(reason)

    def stop(self, timeout_s: float = KILL_WAIT_S) -> None:
        """Stop the engine's thread after its current step. Blocks; may be called twice."""
        self.end.close()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the engine thread is still in a step after %.1f s", timeout_s)


def started(
    spec: EngineSpec, elsewhere: Sequence[EngineHost] = (), *, in_process: bool
) -> list[tuple[EngineSpec, EngineHost]]:
    """Start all engines or none, in processes or threads; return them and then `elsewhere`."""
    try:
        hosts = begun(spec.each(), in_process=in_process)
    except BaseException:
        for host in elsewhere:
            host.stop(0.0)
        raise
    return list(zip(spec.every(), [*hosts, *elsewhere], strict=True))


def begun(
    specs: Sequence[EngineSpec], earlier: Sequence[EngineProcess] = (), *, in_process: bool = False
) -> list[EngineHost]:
    """Start engines in processes or threads, all or none. They get the addresses of `earlier` ones,
    which have been stopped. Raises: ConfigError, OSError"""
    hosts: list[EngineHost] = []
    try:
        for own, before in itertools.zip_longest(_meeting(specs), earlier):
            hosts.append(EngineThread(own) if in_process else EngineProcess(own, before))
    except BaseException:
        for host in hosts:
            host.stop(0.0)
        raise
    return hosts


def _meeting(specs: Sequence[EngineSpec]) -> Sequence[EngineSpec]:
    """Return the specs with a new shared folder if engines share experts. They end together, and
    each removes the folder."""
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


async def closed(host: EngineHost, timeout_s: float) -> None:
    """Shut down an engine without blocking the event loop. One that is dead already is fine."""
    try:
        host.end.send(Shutdown())
    except EngineDead:
        logger.debug("no shutdown message: the engine is gone")
    host.end.close()
    await asyncio.get_running_loop().run_in_executor(None, host.stop, timeout_s)
