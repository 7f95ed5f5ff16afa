"""EngineConnection: one engine as an API process sees it: what it says, what it has to do, its end.

Knows the requests sent to that engine, not where others go. Used within one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dovetail.engine.client.calls import Calls
from dovetail.engine.client.clock import ClockLead
from dovetail.engine.client.host import EngineHost
from dovetail.engine.client.output import OutputProcessor, Processed
from dovetail.engine.faults import error_of
from dovetail.engine.ipc.transport import ClientEnd
from dovetail.engine.messages import (
    Abort,
    AddRequests,
    Dead,
    EngineRequest,
    FromEngine,
    Hello,
    Phase,
    Ping,
    Ready,
    RequestUpdate,
    Return,
    SleepStatus,
    StartFailed,
    Updates,
)
from dovetail.errors import EngineDead, RequestError
from dovetail.interfaces.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.observability.supervise import supervised

logger = logging.getLogger(__name__)

PING_PERIOD_S = 1.0
STALL_S = 10.0
"""An engine with work that gives no sign of life for so long counts as stalled."""
START_FIX = (
    "see the engine's log lines above; if they name no cause, memory may have run out: lower "
    "--kv-cache-memory-bytes or choose a smaller model."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who hears of outputs, of an engine's steps, and of its death, by its number."""

    outputs: Callable[[Processed], None]
    step: Callable[[StepStats], None]
    death: Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """How one of the engines is. `engine` is its number, `reason` why it died (None: it lives),
    `machine` the host on which it runs where that is another one, `failing` those of its threads
    that have failed within the last minute."""

    engine: int
    reason: str | None
    asleep: tuple[str, ...]
    running: int
    waiting: int
    heartbeat_age_s: float
    machine: str = ""
    failing: tuple[str, ...] = ()

    @property
    def is_stalled(self) -> bool:
        """Return whether it has work and has been silent for long."""
        return self.running + self.waiting > 0 and self.heartbeat_age_s > STALL_S


class EngineConnection:
    """The connection to the engine of `spec`. `number` is its place among the engines, from 0;
    `host` is None where another process started it. One that `is_elsewhere`, on another machine,
    has another clock."""

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
        self.asleep: tuple[str, ...] = ()
        self.death_reason: str | None = None
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
        self._calls = Calls(end.send)
        self._counts = (0, 0)
        self._num_of_others = 0
        self._heard_s = self._busy_since_s = time.monotonic()
        self._is_closed = False
        self._ping_task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Return what an error calls the engine: its number where there are several."""
        return f"engine {self.spec.engine}" if self.spec.num_engines > 1 else "the engine"

    @property
    def calls(self) -> Calls:
        """Return what this process has asked of the engine beside generating."""
        return self._calls

    @property
    def is_alive(self) -> bool:
        """Return whether the engine is up and the connection has not been closed."""
        return self.death_reason is None and not self._is_closed

    @property
    def _num_own(self) -> int:
        """Return this process's unfinished completions. An engine that others use already tells
        of its steps before this process can send anything."""
        return self.output.num_unfinished

    def greet(self) -> None:
        """Introduce this process to the engine."""
        self.end.attach(self._loop, self._hear, self._note_loss)
        self.end.send(Hello())

    async def wait_ready(self) -> None:
        """Wait until the engine takes requests. Raises: what it failed to start for; EngineDead"""
        ready = await self._ready
        self.num_blocks = ready.num_blocks
        self._machine = ready.machine if self._is_elsewhere else ""
        self._ping_task = supervised(f"engine-{self.spec.engine}-ping", self._ping)

    def verify_started(self) -> None:
        """Raise EngineDead for an engine that died while others were still starting."""
        if self.death_reason is not None:
            raise EngineDead(self.death_reason, fix=START_FIX)

    @property
    def is_stalled(self) -> bool:
        """Return whether it has work and has been silent for long."""
        return self.heartbeat_age_s() > STALL_S and self._num_present > 0

    def state(self) -> EngineState:
        """Return how the engine is."""
        return EngineState(
            engine=self.spec.engine,
            machine=self._machine,
            reason=self.death_reason,
            asleep=self.asleep,
            running=self.num_running,
            waiting=self.num_waiting,
            heartbeat_age_s=self.heartbeat_age_s(),
            failing=self.failing,
        )

    # What a router sees (interfaces.router.EngineView).

    @property
    def num_running(self) -> int:
        """Return the completions that run, as of the engine's last numbers."""
        return min(self._counts[0], self._num_present)

    @property
    def num_waiting(self) -> int:
        """Return the completions that wait or have just been sent."""
        return max(0, self._num_present - self._counts[0])

    @property
    def pending_tokens(self) -> int:
        """Return the prompt tokens of requests without a first token; those of other processes'
        waiting requests are guessed to be as long as this one's."""
        waiting_elsewhere = max(0, self.num_waiting - self.output.num_unstarted)
        return self.output.pending_tokens + int(waiting_elsewhere * self.output.mean_prompt_tokens)

    @property
    def _num_present(self) -> int:
        """Return all completions in the engine: its last numbers, brought up to date by what this
        process knows of its own."""
        return self._num_of_others + self._num_own

    def load(self) -> tuple[int, int]:
        """Return (running, waiting), with what the engine has not yet answered as waiting."""
        running, waiting = self._counts
        return running, max(waiting, self._num_own - running)

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the engine last said anything; it is asked every second."""
        return time.monotonic() - self._heard_s

    def send(self, requests: tuple[EngineRequest, ...]) -> None:
        """Send requests that `output` expects already. Raises: EngineDead, RequestError"""
        if self.output.num_unfinished == len(requests):
            self._busy_since_s = time.monotonic()
        try:
            self.end.send(AddRequests(requests))
        except OverflowError as error:
            raise RequestError(f"a number is too large: {error}") from None

    def abort(self, ids: tuple[str, ...]) -> None:
        """Have the engine end its requests of these ids."""
        if ids and self.is_alive:
            try:
                self.end.send(Abort(ids))
            except EngineDead as error:
                self.die(error.what)

    def note_pause(self, duration_s: float) -> None:
        """Do not count a time in which this process could not listen as the engine's silence."""
        now_s = time.monotonic()
        self._heard_s = min(now_s, self._heard_s + duration_s)
        self._busy_since_s = min(now_s, self._busy_since_s + duration_s)

    def check_step(self) -> None:
        """Give an engine up that has been in one step for longer than it may be."""
        limit_s = self.spec.step_timeout_s
        if limit_s is None or not self.is_alive or sum(self.load()) == 0:
            return
        age_s = time.monotonic() - max(self._heard_s, self._busy_since_s)
        if age_s > limit_s:
            self.die(f"a step has taken {age_s:.0f} s, --engine-step-timeout is {limit_s:g} s.")

    def close(self, error: EngineDead) -> None:
        """Hear no more of the engine; what still waits for it ends with this error. The end stays
        open, for a goodbye."""
        self._is_closed = True
        if self._ping_task is not None:
            self._ping_task.cancel()
        self._calls.fail(error)

    def _hear(self, message: FromEngine) -> None:
        """Take a message of the engine."""
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
                self._calls.take(message)
            case SleepStatus(asleep):
                self.asleep = asleep
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
        """Return what updates come to; what of them ends here ends in the engine."""
        processed = self.output.process(updates)
        self.abort(tuple(processed.aborts))
        return processed

    def _note_counts(self, running: int, waiting: int) -> None:
        self._counts = (running, waiting)
        self._num_of_others = max(0, running + waiting - self._num_own)

    def note_exit(self, reason: str) -> None:
        """Learn from another thread that the engine has ended."""
        try:
            self._loop.call_soon_threadsafe(self._note_exit_soon, reason)
        except RuntimeError:
            logger.debug("the event loop is closed already: %s", reason)

    def _note_exit_soon(self, reason: str) -> None:
        # Last words may still lie in the socket: they name the cause, an exit status does not.
        self._loop.call_later(0.05, self.die, reason)

    def _note_loss(self, reason: str) -> None:
        """Learn that the connection broke; a parent soon knows more, so it may speak first."""
        self._loop.call_later(0.0 if self.host is None else 0.2, self.die, reason)

    def _fail_start(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    def die(self, reason: str) -> None:
        """End everything that waits for this engine. Only the first reason counts."""
        if not self.is_alive:
            return
        self.death_reason = reason
        if not self._ready.done():
            # A start-up failure is told over the socket just before the process ends.
            self._loop.call_later(0.2, self._fail_start, EngineDead(reason, fix=START_FIX))
            return
        logger.error("%s is dead: %s", self.name, reason)
        self._calls.fail(EngineDead(reason))
        self._listener.death(self.number)

    async def _ping(self) -> None:
        """Ask for a sign of life, again and again; an engine in a long step answers after it."""
        while self.is_alive:
            asked_s = time.monotonic()
            try:
                status = await self._calls.call(Ping())
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
    """Return the parts of the start, of several engines each part where it took longest."""
    slowest: dict[str, Phase] = {}
    for phase in (phase for connection in connections for phase in connection.phases):
        known = slowest.get(phase.name)
        if known is None or known.duration_s < phase.duration_s:
            slowest[phase.name] = phase
    return list(slowest.values())


def common_death(connections: Sequence[EngineConnection]) -> str | None:
    """Return why all engines are dead; None while one lives."""
    reasons = {c.spec.engine: c.death_reason for c in connections}
    if None in reasons.values():
        return None
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    return " ".join(f"engine {number}: {reason}" for number, reason in reasons.items())


def note_up(spec: EngineSpec, value: int) -> None:
    """Let the metrics say whether an engine lives: 1 or 0."""
    from dovetail.observability import metrics  # how numbers are kept is decided at its import

    metrics.ENGINE_UP.labels(str(spec.engine)).set(value)
