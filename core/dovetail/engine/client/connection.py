"""EngineConnection: an API process's connection to one engine: messages, pending work, death.

Knows the requests sent to that engine, not those of others. Used within one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dovetail.engine.client.calls import Calls
from dovetail.engine.client.host import EngineHost
from dovetail.engine.client.restarts import Life
from dovetail.engine.client.results.clock import ClockLead
from dovetail.engine.client.results.output_processor import OutputProcessor, Processed
from dovetail.engine.faults import error_of
from dovetail.engine.ipc.transport import ClientEnd
from dovetail.engine.messages import (
    Abort,
    AddRequests,
    ClientHello,
    Dead,
    EngineCondition,
    EngineRequest,
    FromEngine,
    Phase,
    Ping,
    Ready,
    RequestUpdate,
    Return,
    StartFailed,
    Updates,
)
from dovetail.errors import EngineDead, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.observability.supervise import supervised

logger = logging.getLogger(__name__)

PING_PERIOD_S = 1.0
STALL_S = 10.0
"""An engine with work that is silent for this long counts as stalled."""
START_FIX = (
    "see the engine's log lines above; if they name no cause, memory may have run out: lower "
    "--kv-cache-memory-bytes or choose a smaller model."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks for outputs, for an engine's steps, for dropped prefixes, and for its death."""

    outputs: Callable[[Processed], None]
    step: Callable[[StepStats], None]
    reset: Callable[[EngineConnection], None]
    death: Callable[[EngineConnection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The state of an engine. `engine` is its number, `reason` why it is dead (None: it is alive),
    `machine` its host if that is another one. `failing` names its threads that have failed within
    the last minute. It was started again `restarts` times, the last time after it had died because
    of `last_reason`. One that `is_leaving` gets no new requests, or has ended so."""

    engine: int
    reason: str | None
    asleep: tuple[str, ...]
    running: int
    waiting: int
    heartbeat_age_s: float
    machine: str = ""
    failing: tuple[str, ...] = ()
    restarts: int = 0
    last_reason: str = ""
    is_restarting: bool = False
    is_leaving: bool = False

    @property
    def is_stalled(self) -> bool:
        """Return whether it has work but has been silent for too long."""
        return self.running + self.waiting > 0 and self.heartbeat_age_s > STALL_S


class EngineConnection:
    """The connection to the engine of `spec`. `number` is its index among the engines, from 0;
    `host` is None if another process started it. `is_elsewhere`: on another machine, with its own
    clock."""

    def __init__(
        self,
        number: int,
        spec: EngineSpec,
        end: ClientEnd,
        host: EngineHost | None,
        listener: Listener,
        *,
        is_elsewhere: bool = False,
    ) -> None:
        self.number = number
        self.spec = spec
        self.end = end
        self.host = host
        self.phases: list[Phase] = []
        self.condition = EngineCondition()
        self.death_reason: str | None = None
        self.pid = 0
        self.num_blocks = 0
        self.num_steps = 0
        self.failing: tuple[str, ...] = ()
        self.kv_usage = 0.0
        self._machine = ""
        self._is_elsewhere = is_elsewhere
        self._lead = ClockLead()
        self._listener = listener
        self.output = OutputProcessor(engine=spec.engine)
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self.calls = Calls(end.send)
        self._counts = (0, 0)
        self._num_of_others = 0
        self._heard_s = self._busy_since_s = time.monotonic()
        self._is_closed = False
        self._ping_task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Return the engine's name in errors, with its number if there are several."""
        return f"engine {self.spec.engine}" if self.spec.num_engines > 1 else "the engine"

    @property
    def is_alive(self) -> bool:
        """Return whether the engine is alive and the connection open."""
        return self.death_reason is None and not self._is_closed

    @property
    def _num_own(self) -> int:
        """Return this process's unfinished completions. If others use the engine, it may report
        steps before this process sends anything."""
        return self.output.num_unfinished

    def greet(self) -> None:
        """Introduce this process to the engine."""
        self.end.attach(self._loop, self._hear, self._note_loss)
        self.end.send(ClientHello())

    async def wait_ready(self) -> None:
        """Wait until the engine accepts requests. Raises: its start-up error; EngineDead"""
        ready = await self._ready
        self.pid, self.num_blocks = ready.pid, ready.num_blocks
        self._machine = ready.machine if self._is_elsewhere else ""
        self._ping_task = supervised(f"engine-{self.spec.engine}-ping", self._ping)

    def verify_started(self) -> None:
        """Raise EngineDead if the engine died while others were still starting."""
        if self.death_reason is not None:
            raise EngineDead(self.death_reason, fix=START_FIX)

    @property
    def is_stalled(self) -> bool:
        """Return whether it has work but has been silent for too long."""
        return self.heartbeat_age_s() > STALL_S and self._num_present > 0

    def state(self) -> EngineState:
        """Return the engine's state."""
        return EngineState(
            engine=self.spec.engine,
            machine=self._machine,
            reason=self.death_reason,
            asleep=self.condition.asleep,
            running=self.num_running,
            waiting=self.num_waiting,
            heartbeat_age_s=self.heartbeat_age_s(),
            failing=self.failing,
            is_leaving=self.condition.is_leaving,
        )

    # The router's view (interfaces.router.EngineView).

    @property
    def num_running(self) -> int:
        """Return the number of running completions, from the engine's latest statistics."""
        return min(self._counts[0], self._num_present)

    @property
    def num_waiting(self) -> int:
        """Return the number of completions that wait or have just been sent."""
        return max(0, self._num_present - self._counts[0])

    @property
    def pending_tokens(self) -> int:
        """Return the prompt tokens of requests without a first token. Waiting requests of other
        processes are assumed to have this process's mean length."""
        waiting_elsewhere = max(0, self.num_waiting - self.output.num_unstarted)
        return self.output.pending_tokens + int(waiting_elsewhere * self.output.mean_prompt_tokens)

    @property
    def _num_present(self) -> int:
        """Return all completions in the engine: its latest statistics, updated by what this process
        knows of its own."""
        return self._num_of_others + self._num_own

    def load(self) -> tuple[int, int]:
        """Return (running, waiting); requests not counted by the engine yet are waiting."""
        running, waiting = self._counts
        return running, max(waiting, self._num_own - running)

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the engine's last message; it is pinged every second."""
        return time.monotonic() - self._heard_s

    def send(self, requests: tuple[EngineRequest, ...]) -> None:
        """Send requests that `output` already tracks. Raises: EngineDead, RequestError"""
        if self.output.num_unfinished == len(requests):
            self._busy_since_s = time.monotonic()
        try:
            self.end.send(AddRequests(requests))
        except OverflowError as error:
            raise RequestError(f"a number is too large: {error}") from None

    def abort(self, ids: tuple[str, ...]) -> None:
        """Abort the engine requests with these ids."""
        if ids and self.is_alive:
            try:
                self.end.send(Abort(ids))
            except EngineDead as error:
                self.die(error.what)

    def note_pause(self, duration_s: float) -> None:
        """Exclude a time in which this process could not read from the engine's silence."""
        now_s = time.monotonic()
        self._heard_s = min(now_s, self._heard_s + duration_s)
        self._busy_since_s = min(now_s, self._busy_since_s + duration_s)

    def check_step(self) -> None:
        """Declare an engine dead if it has been in one step for too long."""
        limit_s = self.spec.step_timeout_s
        if limit_s is None or not self.is_alive or sum(self.load()) == 0:
            return
        age_s = time.monotonic() - max(self._heard_s, self._busy_since_s)
        if age_s > limit_s:
            self.die(f"a step has taken {age_s:.0f} s, --engine-step-timeout is {limit_s:g} s.")

    def close(self, error: EngineDead) -> None:
        """Stop reading from the engine; pending calls fail with this error. The socket stays open,
        for the Goodbye message."""
        self._is_closed = True
        if self._ping_task is not None:
            self._ping_task.cancel()
        self.calls.fail(error)
        self._ready.cancel()

    def _hear(self, message: FromEngine) -> None:
        """Handle a message from the engine."""
        self._heard_s = time.monotonic()
        match message:
            case Updates(updates, stats):
                if updates:
                    self._listener.outputs(self._processed(updates))
                for step in stats:
                    self._note_counts(step.num_running, step.num_waiting)
                    self.kv_usage = step.kv_usage
                    self._listener.step(step)
            case Return():
                self.calls.take(message)
            case EngineCondition():
                before, self.condition = self.condition, message
                if before.num_resets != message.num_resets:
                    self._listener.reset(self)
            case Phase(name, duration_s):
                self.phases.append(message)
                logger.info("%s start-up: %s took %.2f s", self.name, name, duration_s)
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(message)
            case StartFailed(fault):
                self._fail_start(error_of(fault))
            case Dead(reason):
                self.die(reason)

    def _processed(self, updates: tuple[RequestUpdate, ...]) -> Processed:
        """Process updates; abort the engine requests that they end on this side."""
        processed = self.output.process(updates)
        self.abort(tuple(processed.aborts))
        return processed

    def _note_counts(self, running: int, waiting: int) -> None:
        self._counts = (running, waiting)
        self._num_of_others = max(0, running + waiting - self._num_own)

    def note_exit(self, reason: str) -> None:
        """Report from another thread that the engine process has exited."""
        try:
            self._loop.call_soon_threadsafe(self._note_exit_soon, reason)
        except RuntimeError:
            logger.debug("the event loop is closed already: %s", reason)

    def _note_exit_soon(self, reason: str) -> None:
        # A last message may still be in the socket: it has the cause, an exit status does not.
        self._loop.call_later(0.05, self.die, reason)

    def _note_loss(self, reason: str) -> None:
        """Handle a lost connection. The parent soon has the exit status, so it may come first."""
        self._loop.call_later(0.0 if self.host is None else 0.2, self.die, reason)

    def _fail_start(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    def die(self, reason: str) -> None:
        """Fail everything that waits for this engine. Only the first reason counts."""
        if not self.is_alive:
            return
        self.death_reason = reason
        if not self._ready.done():
            # A start-up failure is sent over the socket just before the process exits.
            self._loop.call_later(0.2, self._fail_start, EngineDead(reason, fix=START_FIX))
            return
        logger.error("%s is dead: %s", self.name, reason)
        self.calls.fail(EngineDead(reason))
        self._listener.death(self)

    async def _ping(self) -> None:
        """Ping the engine regularly; an engine in a long step answers after it."""
        while self.is_alive:
            asked_s = time.monotonic()
            try:
                status = await self.calls.call(Ping())
            except EngineDead as error:
                self.die(error.what)
                return
            if self._is_elsewhere:
                self.output.clock_lead_s = self._lead.note(asked_s, status.now_s, time.monotonic())
            self.num_steps = status.num_steps
            self.failing = status.failing
            self._note_counts(status.num_running, status.num_waiting)
            await asyncio.sleep(PING_PERIOD_S)


def slowest_phases(connections: Sequence[EngineConnection]) -> list[Phase]:
    """Return the phases of the start-up; with several engines, each phase's slowest."""
    slowest: dict[str, Phase] = {}
    for phase in (phase for connection in connections for phase in connection.phases):
        known = slowest.get(phase.name)
        if known is None or known.duration_s < phase.duration_s:
            slowest[phase.name] = phase
    return list(slowest.values())


def common_death(connections: Sequence[EngineConnection]) -> str | None:
    """Return why all engines are dead; None while one is alive."""
    reasons = {c.spec.engine: c.death_reason for c in connections}
    if None in reasons.values():
        return None
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    return " ".join(f"engine {number}: {reason}" for number, reason in reasons.items())


def note_life(
    spec: EngineSpec, life: Life, *, num_restarts: int = 0, is_removed: bool = False
) -> None:
    """Set an engine's metrics: whether it is alive or restarting; none if it is removed. Count new
    restarts."""
    from dovetail.observability import metrics  # the import decides how metrics are stored

    name = str(spec.engine)
    ends = life.is_over and is_removed
    metrics.ENGINE_UP.labels(name).set(metrics.GONE if ends else bool(life.pid))
    metrics.ENGINE_RESTARTING.labels(name).set(
        metrics.GONE if ends else not life.pid and not life.is_over
    )
    metrics.ENGINE_RESTARTS.labels(name).inc(num_restarts)
