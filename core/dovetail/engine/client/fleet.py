"""Fleet: one client's engines: their connections, their states, their deaths and restarts.

Every call goes to all live engines. Knows no requests: `AsyncEngine` does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from msgspec import structs

from dovetail.engine.client.connection import (
    EngineConnection,
    EngineState,
    Listener,
    common_death,
    note_life,
    slowest_phases,
)
from dovetail.engine.client.host import EngineHost, EngineProcess, begun, closed
from dovetail.engine.client.operations import EngineOperations
from dovetail.engine.client.restarts import Life, Restarts
from dovetail.engine.client.results.output_processor import Processed
from dovetail.engine.client.routing import Routing
from dovetail.engine.ipc.socket_ends import client_end
from dovetail.engine.ipc.transport import ClientEnd
from dovetail.engine.messages import AnyOperation, EngineCondition, Operation, Phase
from dovetail.errors import DovetailError, EngineDead, Overloaded, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.observability.stats import StatLoggers
from dovetail.observability.supervise import supervised
from dovetail.registry import hooks
from dovetail.registry.blame import described

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Ends = Sequence[tuple[EngineSpec, ClientEnd, EngineHost | None]]
"""Each engine with this process's end of its transport, and its host if this process started it."""

TICK_PERIOD_S = 1.0
FLUSH_PERIOD_S = 5.0
ATTACH_LIMIT_S = 60.0
# Time for one of several engines that share experts to report why it died.
SHARERS_WAIT_S = 0.3
LEAVE_WAIT_S = 5.0
"""How long an engine that was removed has to end by itself."""
RETURN_WAIT_S = 600.0
"""How long requests and calls wait for an engine while all are being started again."""


class Fleet(EngineOperations):
    """All engines of one client, and their `lives`, which other API processes `follow`. If another
    process has started the engines, they are at `addresses`. Used within one event loop."""

    def __init__(self, spec: EngineSpec, ends: Ends, addresses: Sequence[str] = ()) -> None:
        self.spec = spec
        self._loop = asyncio.get_running_loop()
        self._addresses = addresses
        self._connections = [
            self._connected(number, own, end, host) for number, (own, end, host) in enumerate(ends)
        ]
        self._routing = Routing(spec, self._connections)
        self._is_owner = any(host is not None for _, _, host in ends)
        self._is_draining = self._is_shut_down = False
        self.lives = [Life() for _ in ends]
        common = Restarts(spec.max_restarts) if spec.shares_experts else None
        self._restarts = [common or Restarts(spec.max_restarts) for _ in ends]
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._tidying: list[asyncio.Task[None]] = []
        self._revivals: dict[int, asyncio.Task[None]] = {}
        self._wanted: set[int] = set()
        self._stats = StatLoggers([])
        self._hooks = hooks.manager_of(())

    def _connected(
        self, number: int, own: EngineSpec, end: ClientEnd, host: EngineHost | None
    ) -> EngineConnection:
        listener = Listener(
            outputs=self._deliver,
            step=self._note_step,
            reset=lambda one: self._routing.forget(one),
            death=self._note_death,
        )
        is_elsewhere = own.engine in self.spec.elsewhere
        connection = EngineConnection(number, own, end, host, listener, is_elsewhere=is_elsewhere)
        if host is not None and host.absence:
            connection.death_reason = host.absence
        elif host is not None:
            host.watch(connection.note_exit)
        return connection

    @abstractmethod
    def _deliver(self, processed: Processed) -> None:
        """Pass on outputs of an engine."""

    @abstractmethod
    def _end_all(self, connection: EngineConnection, reason: str) -> None:
        """End all requests of an engine, or have them run again."""

    @property
    def hosts(self) -> list[EngineHost]:
        """Return the engines that this process has started."""
        return [c.host for c in self._connections if c.host is not None]

    def addresses_for(self, process: int) -> tuple[str, ...]:
        """Return the addresses where API process number `process`, from 0, can attach; none for an
        engine in a thread."""
        found = [host.address_for(process) for host in self.hosts]
        return tuple(address for address in found if address is not None)

    def hand_over(self) -> None:
        """Leave their connections to the other API processes once all have started."""
        for host in self.hosts:
            host.hand_over()

    @property
    def name(self) -> str:
        """Return the first engine's name for this API process."""
        return self._connections[0].end.name

    @property
    def phases(self) -> list[Phase]:
        """Return the phases of the start-up; with several engines, each phase's slowest."""
        return slowest_phases(self._connections)

    @property
    def death_reason(self) -> str | None:
        """Return why all engines died, with none to be started again; None otherwise."""
        is_over = all(life.is_over for life in self.lives)
        return common_death(self._connections) if is_over else None

    @property
    def is_alive(self) -> bool:
        """Return whether an engine is alive, or will be again, and this has not been shut down."""
        return self.death_reason is None and not self._is_shut_down

    @property
    def asleep(self) -> tuple[str, ...]:
        """Return the parts that sleep if all live engines sleep; then no requests are accepted."""
        states = [connection.condition.asleep for connection in self._living()]
        return states[0] if states and all(states) else ()

    def _living(self) -> list[EngineConnection]:
        return [connection for connection in self._connections if connection.is_alive]

    def states(self) -> list[EngineState]:
        """Return the state of each engine, in the order of their numbers."""
        return [
            replace(
                connection.state(),
                restarts=life.restarts,
                last_reason=life.reason,
                is_restarting=connection.death_reason is not None and not life.is_over,
            )
            for connection, life in zip(self._connections, self.lives, strict=True)
        ]

    def given_up(self) -> dict[int, tuple[int, str]]:
        """Return the process ids and death reasons of dead engines, by number."""
        return {c.spec.engine: (c.pid, c.death_reason) for c in self._connections if c.death_reason}

    def take_wanted(self) -> tuple[int, ...]:
        """Return the numbers of dead engines that another process is to start. Mutates: self"""
        wanted, self._wanted = self._wanted, set()
        return tuple(wanted)

    def start_wanted(self, engines: Sequence[int]) -> None:
        """Start the engines that another process wants (see `take_wanted`). Mutates: self"""
        for connection in self._connections:
            if connection.spec.engine in engines:
                self.add(connection.number)

    def give_up(self, engines: Mapping[int, tuple[int, str]]) -> None:
        """Mark engines as dead that another process reported (see `given_up`), unless they have
        been started again since."""
        for connection in self._connections:
            pid, reason = engines.get(connection.spec.engine, (-1, ""))
            if pid == connection.pid:
                connection.die(reason)

    def add(self, number: int) -> None:
        """Replace an engine that was removed or given up by a new one. In a process that did not
        start it, ask the one that did. Mutates: self"""
        dead = self._connections[number]
        if dead.host is None:
            self._wanted.add(dead.spec.engine)
        elif not dead.is_alive and not self._is_reviving(number):
            self._restarts[number] = Restarts(self.spec.max_restarts)
            self._note_reason(dead, dead.death_reason or "", is_over=False)
            note_life(dead.spec, self.lives[number])
            work = partial(self._revive, [dead], 0.0)
            self._revivals[number] = supervised("engine-restart", work)

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the last message of any engine; each is pinged every second."""
        return min(connection.heartbeat_age_s() for connection in self._connections)

    def load(self) -> tuple[int, int]:
        """Return (running, waiting); requests that the engines have not counted yet are waiting."""
        loads = [connection.load() for connection in self._living()]
        return sum(running for running, _ in loads), sum(waiting for _, waiting in loads)

    def pending_tokens(self) -> int:
        """Return the prompt tokens of requests without a first token."""
        return sum(connection.pending_tokens for connection in self._living())

    async def call_each(
        self, operation: Operation[Result], timeout_s: float | None = None
    ) -> list[Result]:
        """Run an operation in every live engine; return the result of each."""
        self._verify_open()
        await self._wait_for_engine(timeout_s)
        calls = [connection.calls.call(operation, timeout_s) for connection in self._living()]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        errors = [one for one in ended if isinstance(one, BaseException)]
        real = [error for error in errors if not isinstance(error, EngineDead)]
        if real or len(errors) == len(ended):
            raise (real or errors)[0]
        return [one for one in ended if not isinstance(one, BaseException)]

    @property
    def condition(self) -> EngineCondition:
        """Return what operations have made of the engines."""
        return (self._living() or self._connections)[0].condition

    def _verify_open(self) -> None:
        if (reason := self.death_reason) is not None:
            raise EngineDead(reason)
        if self._is_shut_down or self._is_draining:
            raise Overloaded("the server is shutting down and takes no new requests.")

    async def _wait_for_engine(self, limit_s: float | None = None) -> None:
        """Wait until an engine is alive, if one is being started again. Raises: EngineDead,
        Overloaded after `limit_s`"""
        if self._living():
            return
        limit_s = RETURN_WAIT_S if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                while self.is_alive and not self._living():
                    await self._change.wait()
        except TimeoutError:
            reason = f"it had died: {self._connections[0].death_reason}"
            raise Overloaded(f"no engine is back within {limit_s:g} s; {reason}") from None
        if not self.is_alive:
            raise EngineDead(self.death_reason or "the engine was shut down.")

    def _tell_change(self) -> None:
        """Wake the tasks that wait for a live engine, or until all have ended. Mutates: self"""
        self._change.set()
        self._change = asyncio.Event()
        if not self.is_alive:
            self._ended.set()

    def _note_step(self, stats: StepStats) -> None:
        if self._is_owner:  # with several API processes, only one counts the steps
            self._stats.step(stats)

    def _note_death(self, dead: EngineConnection) -> None:
        """Start a dead engine again, or give it up; end its requests. The others continue."""
        if self._connections[dead.number] is not dead:
            return  # it was being started again, and that has failed
        reason = dead.death_reason or "unknown cause"
        may_restart = self.spec.max_restarts > 0 and not dead.condition.is_leaving
        self._note_reason(dead, reason, is_over=not may_restart)
        if dead.host is None:
            self._loop.call_soon(dead.end.close)  # an engine at its address would get old messages
        else:
            # Report final zeros, so that it does not appear to run forever.
            zeros = StepStats(num_running=0, num_waiting=0, kv_usage=0.0, engine=dead.spec.engine)
            self._stats.step(zeros)
            is_restarting = may_restart and self._restart(dead, dead.host)
            if not is_restarting and self._living():  # a hung engine still holds memory
                wait_s = LEAVE_WAIT_S if dead.condition.is_leaving else 0.0
                self._tidying.append(self._loop.create_task(closed(dead.host, wait_s)))
            note_life(dead.spec, self.lives[dead.number], is_removed=dead.condition.is_leaving)
        self._end_all(dead, dead.death_reason or reason)
        self._routing.forget(dead)
        if self.spec.shares_experts:
            self._loop.call_later(SHARERS_WAIT_S, self._end_sharers, dead)
        self._tell_change()
        hooks.tell(hooks.engine_stopped, {"reason": reason}, using=self._hooks)

    def _note_reason(self, dead: EngineConnection, reason: str, *, is_over: bool) -> None:
        """Record why an engine is dead, and whether it has been given up. Mutates: self, dead"""
        dead.death_reason = reason
        life = self.lives[dead.number]
        self.lives[dead.number] = structs.replace(life, pid=0, reason=reason, is_over=is_over)

    def _restart(self, dead: EngineConnection, host: EngineHost) -> bool:
        """Begin to start an engine again, with those that need it, or give it up; return whether it
        is started again. Mutates: self"""
        policy = self._restarts[dead.number]
        group = [c for c in self._connections if c.host and self._restarts[c.number] is policy]
        first = group[0].number
        if self._is_reviving(first):
            return True
        wait_s = None if host.restart_refusal else policy.wait_after_death(time.monotonic())
        if wait_s is None:
            self._give_up(dead, host.restart_refusal or policy.end_reason())
            return False
        work = partial(self._revive, group, wait_s)
        self._revivals[first] = supervised("engine-restart", work)
        return True

    def _is_reviving(self, number: int) -> bool:
        return number in self._revivals and not self._revivals[number].done()

    def _give_up(self, dead: EngineConnection, why: str) -> None:
        self._note_reason(dead, f"{dead.death_reason} {why}", is_over=True)
        logger.error("%s is given up: %s", dead.name, dead.death_reason)

    def _end_sharers(self, dead: EngineConnection) -> None:
        """Kill the other engines: they need the experts of the dead one."""
        for connection in self._living():
            connection.die(f"{dead.name}, whose experts it needs, has ended: {dead.death_reason}")

    async def _revive(self, dead: Sequence[EngineConnection], wait_s: float | None) -> None:
        """Start engines again, all or none, until they are alive or given up."""
        policy = self._restarts[dead[0].number]
        while wait_s is not None:
            logger.warning("%s: it is started again in %g s", dead[0].name, wait_s)
            await asyncio.sleep(wait_s)
            try:
                self._install(await self._started_again(dead))
                policy.note_ready(time.monotonic())
                return
            except Exception as error:
                what = f"it could not be started again: {described(error)}"
                logger.error("%s: %s", dead[0].name, what)
                for one in dead:
                    self._note_reason(one, what, is_over=False)
            wait_s = policy.wait_after_death(time.monotonic())
        for one in dead:
            self._give_up(one, policy.end_reason())
            note_life(one.spec, self.lives[one.number])
        self._tell_change()

    async def _started_again(self, dead: Sequence[EngineConnection]) -> list[EngineConnection]:
        """Return the connections to engines in the places of dead ones, at the same addresses.
        Raises: their start-up errors"""
        earlier = [one.host for one in dead if isinstance(one.host, EngineProcess)]
        await asyncio.gather(*self._tidying, *(closed(host, 0.0) for host in earlier))
        self._tidying = [task for task in self._tidying if not task.done()]
        return await self._greeted(dead, begun([one.spec for one in dead], earlier))

    def join(self, engine: int, host: EngineHost) -> None:
        """Put an engine that another machine has started into the place of one that has ended, once
        it is ready. Mutates: self"""
        dead = next(one for one in self._connections if one.spec.engine == engine)
        dead.die("another process has joined in its place.")
        self._note_reason(dead, dead.death_reason or "", is_over=False)
        note_life(dead.spec, self.lives[dead.number])
        work = partial(self._admit, dead, host)
        self._revivals[dead.number] = supervised("engine-join", work)

    async def _admit(self, dead: EngineConnection, host: EngineHost) -> None:
        try:
            self._install(await self._greeted([dead], [host]))
        except Exception as error:
            self._note_reason(dead, "it has joined, and did not start:", is_over=False)
            self._give_up(dead, described(error))
            self._tell_change()

    async def _greeted(
        self, dead: Sequence[EngineConnection], hosts: Sequence[EngineHost]
    ) -> list[EngineConnection]:
        """Return the connections to engines that are to take the places of dead ones, once they are
        ready; end all if one does not start. Raises: their start-up errors"""
        fresh = [
            self._connected(one.number, one.spec, host.end, host)
            for one, host in zip(dead, hosts, strict=True)
        ]
        try:
            for connection in fresh:
                connection.greet()
            await asyncio.gather(*(connection.wait_ready() for connection in fresh))
            for connection, before in zip(fresh, dead, strict=True):
                await self._catch_up(connection, before)
            for connection in fresh:
                connection.verify_started()
        except BaseException:
            for connection in fresh:
                connection.close(EngineDead("the engine did not start."))
            await asyncio.gather(*(closed(host, 0.0) for host in hosts))
            raise
        return fresh

    async def _catch_up(self, fresh: EngineConnection, dead: EngineConnection) -> None:
        """Bring an engine that was started again to the condition of the others."""
        done: Sequence[AnyOperation] = ()
        while done != (wanted := (*self._living(), dead)[0].condition.repeats):
            done = wanted
            for operation in done:
                try:
                    await fresh.calls.call(cast(Operation[None], operation))
                except RequestError as error:
                    if operation.is_vital:
                        raise
                    logger.error("%s could not repeat %s: %s", fresh.name, operation, error)

    def _install(self, fresh: Sequence[EngineConnection]) -> None:
        """Put engines that accept requests in the places of dead ones. Mutates: self"""
        for one in fresh:
            was_there = bool(self._connections[one.number].pid)
            self._connections[one.number] = one
            logger.info("%s is alive%s, as process %d", one.name, " again" * was_there, one.pid)
            if one.host is None:
                continue
            life, again = self.lives[one.number], int(was_there)
            life = structs.replace(life, pid=one.pid, restarts=life.restarts + again)
            self.lives[one.number] = life
            note_life(one.spec, life, num_restarts=again)
            hooks.tell(hooks.engine_started, {"spec": one.spec}, using=self._hooks)
        self._tell_change()

    def follow(self, lives: Sequence[Life]) -> None:
        """Connect to the engines that their owner has started again, and give up those that it has
        given up (see `lives`). Mutates: self"""
        for own, life in zip(tuple(self._connections), lives, strict=True):
            self.lives[own.number] = life
            if life.is_over:
                own.die(life.reason)
                self._note_reason(own, life.reason, is_over=True)
            elif life.pid not in (0, own.pid) and not self._is_reviving(own.number):
                own.die(life.reason)
                work = partial(self._attach_again, own)
                self._revivals[own.number] = supervised("engine-attach", work)
        self._tell_change()

    async def _attach_again(self, dead: EngineConnection) -> None:
        """Connect to an engine that was started again. A later report repeats a failed attempt."""
        address = self._addresses[dead.number]
        fresh = self._connected(dead.number, dead.spec, client_end(address), None)
        fresh.greet()
        try:
            async with asyncio.timeout(ATTACH_LIMIT_S):
                await fresh.wait_ready()
            fresh.verify_started()
            self._install([fresh])
        except (TimeoutError, DovetailError) as error:
            logger.warning("%s: no connection to it yet: %s", dead.name, error)
            fresh.close(EngineDead("the engine does not answer."))
            fresh.end.close()

    async def _tick(self) -> None:
        """Check the engines for steps that take too long, and flush the stat loggers regularly."""
        flushed_s = looked_s = time.monotonic()
        while self.is_alive:
            late_s = time.monotonic() - looked_s - TICK_PERIOD_S
            for connection in tuple(self._connections):
                if late_s > TICK_PERIOD_S:  # this process was suspended, and has messages to read
                    connection.note_pause(late_s)
                connection.check_step()
            looked_s = time.monotonic()
            if time.monotonic() - flushed_s >= FLUSH_PERIOD_S:
                flushed_s = time.monotonic()
                self._stats.flush()
            await asyncio.sleep(TICK_PERIOD_S)
