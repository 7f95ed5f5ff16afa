"""The engine's loop: receive messages, step, send outputs. Runs in its own process or in a thread.

Knows which client sent which request and nothing else about them. It blocks while there is no work.
Whenever it wakes up, it checks that the executor's workers are alive.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dovetail.engine.core import EngineCore, StepOutput
from dovetail.engine.faults import fault_of
from dovetail.engine.ipc.transport import EngineEnd
from dovetail.engine.messages import (
    Abort,
    AddRequests,
    AnyOperation,
    AnyResult,
    Call,
    ClientHello,
    Dead,
    EngineCondition,
    EngineRequest,
    EngineStatus,
    FromEngine,
    Goodbye,
    Phase,
    Ping,
    Ready,
    RequestUpdate,
    ResetPrefixCache,
    Return,
    Shutdown,
    StartFailed,
    ToEngine,
    Updates,
)
from dovetail.engine.parts.part import IDLE_WAKE_S
from dovetail.errors import ConfigError, DovetailError, EngineDead, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.observability.supervise import failing
from dovetail.registry.blame import blaming, described

logger = logging.getLogger(__name__)

HELLO_LIMIT_S = 30.0
STALL_WAIT_S = 0.005
CHECK_AFTER_S = 1.0
# Clients without updates of their own get the engine's statistics this often.
STATS_PERIOD_S = 0.1


class _Client:
    """An API process: its running requests, and the statistics it has not received yet."""

    __slots__ = ("request_ids", "stats", "told_s")

    def __init__(self) -> None:
        self.request_ids: set[str] = set()
        self.stats: list[StepStats] = []
        self.told_s = 0.0


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call that the engine has started; the client gets the result once `done` is set."""

    client: bytes
    call_id: int
    done: Future[AnyResult]


def run(spec: EngineSpec, end: EngineEnd) -> int:
    """Start an engine and serve until shutdown; return the exit status.

    Does not raise for a fault of the engine: the clients are informed.
    """
    clients = _await_hello(end)
    if not clients:
        logger.info("no API process connected in time; exiting")
        return 1
    try:
        core = EngineCore(
            spec, lambda name, duration_s: _tell(end, clients, Phase(name, duration_s))
        )
    except Exception as error:
        _tell(end, clients, _start_failure(error))
        return 2
    # Objects made at start-up live forever: freeze them, so that later collections skip them.
    gc.collect()
    gc.freeze()
    try:
        with blaming("a step"):
            EngineLoop(core, end, clients).run()
    except Exception as error:
        if not isinstance(error, EngineDead):
            logger.exception("the engine stops because of a fault")
        _tell(end, clients, Dead(_reason(error)))
        return 1
    finally:
        with blaming("the shutdown"):
            core.shutdown()
    return 0


def _await_hello(end: EngineEnd) -> list[bytes]:
    """Wait for the first client to introduce itself; return all that have."""
    deadline_s = time.monotonic() + HELLO_LIMIT_S
    while time.monotonic() < deadline_s:
        received = end.receive(IDLE_WAKE_S)
        if any(isinstance(message, Shutdown) for _, message in received):
            return []
        clients = [client for client, message in received if isinstance(message, ClientHello)]
        if clients:
            return clients
    return []


def _tell(end: EngineEnd, clients: Sequence[bytes], message: FromEngine) -> None:
    for client in clients:
        end.send(client, message)


def _start_failure(error: Exception) -> StartFailed:
    if not isinstance(error, DovetailError):
        logger.error("the engine could not start", exc_info=error)
        error = EngineDead(
            f"the engine could not start: {_reason(error)}",
            fix="see the engine's log lines above.",
        )
    return StartFailed(fault_of(error))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, DovetailError) else described(error)


def _return(call: _PendingCall) -> Return:
    """Return the reply to a finished call. Raises: errors that are not the caller's fault"""
    error = call.done.exception()
    if error is None:
        return Return(call.call_id, call.done.result())
    if isinstance(error, RequestError | ConfigError):
        return Return(call.call_id, fault=fault_of(error))
    raise error


class EngineLoop:
    """Serves clients with one engine core until a Shutdown message comes."""

    def __init__(self, core: EngineCore, end: EngineEnd, clients: Sequence[bytes]) -> None:
        self._core = core
        self._end = end
        self._clients: dict[bytes, _Client] = {}
        self._owners: dict[str, bytes] = {}
        self._pending_calls: list[_PendingCall] = []
        self._told = EngineCondition()
        self._is_stopping = False
        self._is_stalled = False
        self._idle_since_s: float | None = None
        self._worker_death: str | None = None
        core.on_death(self._note_worker_death)
        for client in clients:
            self._greet(client)

    def _note_worker_death(self, reason: str) -> None:
        self._worker_death = reason  # called from any thread; the loop checks it when it wakes up

    def run(self) -> None:
        """Serve until a Shutdown message. Raises: EngineDead, or any error that ends the engine"""
        while not self._is_stopping:
            for client, message in self._end.receive(self._poll_timeout_s()):
                self._handle(client, message)
            self._core.poll()
            if self._pending_calls:
                self._return_finished()
            if self._worker_death is not None:
                raise EngineDead(self._worker_death)
            if self._core.has_work:
                self._idle_since_s = None
                self._publish(self._core.step())
            else:
                self._idle()
        self._core.leave()

    def _poll_timeout_s(self) -> float:
        """Return how long to wait for messages; 0 if a step can run."""
        if self._core.has_work:
            return STALL_WAIT_S if self._is_stalled else 0.0
        return STALL_WAIT_S if self._pending_calls else self._core.idle_wake_s

    def _idle(self) -> None:
        """Check the executor; check the invariants once the engine has been idle for a while."""
        self._core.check_executor()
        self._tell_condition()
        now_s = time.monotonic()
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        elif 0 < self._idle_since_s < now_s - CHECK_AFTER_S:
            self._core.check_idle()
            self._idle_since_s = -1.0  # once per idle period

    def _handle(self, client: bytes, message: ToEngine) -> None:
        match message:
            case AddRequests(requests):
                self._add(client, requests)
            case Abort(request_ids):
                self._core.abort(request_ids)
            case Call():
                self._call(client, message)
            case ClientHello():
                self._greet(client)
            case Goodbye():
                self._forget(client)
            case Shutdown():
                self._is_stopping = True

    def _add(self, client: bytes, requests: Sequence[EngineRequest]) -> None:
        known = self._clients.setdefault(client, _Client())
        for request in requests:
            known.request_ids.add(request.request_id)
            self._owners[request.request_id] = client
            self._core.add(request)

    def _call(self, client: bytes, call: Call) -> None:
        """Run a client's call; the client gets its result once it is done. Mutates: self"""
        done: Future[AnyResult] = Future()
        try:
            result = self._perform(call.operation)
        except (RequestError, ConfigError) as error:
            done.set_exception(error)
        else:
            if isinstance(result, Future):
                done = result
            else:
                done.set_result(result)
        self._pending_calls.append(_PendingCall(client, call.id, done))

    def _perform(self, operation: AnyOperation) -> AnyResult | Future[Any]:
        """Return the result, immediately or as a future that this thread polls between steps.

        Raises: RequestError and ConfigError for the caller's mistakes; other errors end the engine.
        Mutates: self
        """
        match operation:
            case Ping():
                return self._status()
            case ResetPrefixCache():
                self._core.reset_prefix_cache()
                return None
        return self._core.perform(operation)

    def _return_finished(self) -> None:
        """Send clients the results of finished calls, in the order of the calls. Mutates: self"""
        self._tell_condition()
        calls, self._pending_calls = self._pending_calls, []
        for call in calls:
            if call.done.done():
                self._send(call.client, _return(call))
            else:
                self._pending_calls.append(call)

    def _tell_condition(self) -> None:
        """Send every client a changed condition, with the engine's statistics. Mutates: self"""
        condition = self._core.condition()
        if condition == self._told:
            return
        self._told = condition
        for name in list(self._clients):
            self._send(name, condition)
        self._publish(StepOutput(updates=[], stats=self._core.stats()))

    def _status(self) -> EngineStatus:
        num_running, num_waiting = self._core.counts()
        return EngineStatus(
            num_steps=self._core.num_steps,
            num_running=num_running,
            num_waiting=num_waiting,
            now_s=time.monotonic(),
            failing=failing(),
            condition=self._core.condition(),
        )

    def _greet(self, client: bytes) -> None:
        self._clients.setdefault(client, _Client())
        layout = self._core.layout
        ready = Ready(
            num_blocks=layout.num_blocks,
            block_tokens=layout.block_tokens,
            pid=os.getpid(),
            machine=socket.gethostname(),
        )
        self._send(client, self._told)
        self._send(client, ready)

    def _forget(self, client: bytes) -> None:
        """Abort the remaining requests of a client that has disconnected."""
        known = self._clients.pop(client, None)
        if known is None:
            return
        if known.request_ids:
            logger.info("an API process left; its %d requests end", len(known.request_ids))
        for request_id in known.request_ids:
            self._owners.pop(request_id, None)
        self._pending_calls = [call for call in self._pending_calls if call.client != client]
        self._core.abort(tuple(known.request_ids))

    def _send(self, client: bytes, message: FromEngine) -> None:
        if not self._end.send(client, message):
            self._forget(client)

    def _publish(self, output: StepOutput) -> None:
        """Send each client its updates, together with the engine's statistics."""
        self._is_stalled = output.is_stalled
        news = self._sorted(output.updates)
        is_idle = not self._core.has_work
        now_s = time.monotonic()
        for name, client in list(self._clients.items()):
            if output.stats is not None:
                client.stats.append(output.stats)
            updates = news.get(name)
            is_due = client.stats and (is_idle or now_s - client.told_s > STATS_PERIOD_S)
            if updates or is_due:
                message = Updates(tuple(updates or ()), tuple(client.stats))
                client.stats.clear()
                client.told_s = now_s
                self._send(name, message)

    def _sorted(self, updates: Sequence[RequestUpdate]) -> dict[bytes, list[RequestUpdate]]:
        """Return the updates by client. Mutates: self, dropping owners of finished requests"""
        news: dict[bytes, list[RequestUpdate]] = {}
        for update in updates:
            name = self._owners.get(update.request_id)
            if name is None:
                continue
            news.setdefault(name, []).append(update)
            if update.finish_reason is not None:
                del self._owners[update.request_id]
                self._clients[name].request_ids.discard(update.request_id)
        return news
