"""AsyncEngine: a model's interface in an API process: prompts in, deltas out, one event loop.

An engine is a child process, a thread, or one that another API process started. The router chooses
one for each request (`routing`); every other call goes to all engines."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from dovetail.engine.client.connection import (
    EngineConnection,
    EngineState,
    Listener,
    common_death,
    note_up,
    slowest_phases,
)
from dovetail.engine.client.host import EngineHost, closed, started
from dovetail.engine.client.operations import EngineOperations
from dovetail.engine.client.pooling.input_processor import PooledInput
from dovetail.engine.client.requests.gated import followed, owned
from dovetail.engine.client.requests.input_processor import (
    InputProcessor,
    PreparedRequest,
    Prompt,
    load_tokenizer,
)
from dovetail.engine.client.results.mailbox import Mailbox
from dovetail.engine.client.results.output_processor import Processed
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.engine.client.results.stop import TextWatch
from dovetail.engine.client.routing import Routing
from dovetail.engine.client.text.text_process import TextProcess
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.ipc.socket_ends import client_end
from dovetail.engine.ipc.transport import ClientEnd
from dovetail.engine.messages import Operation, Phase
from dovetail.engine.parts.sleep_mode import asleep_error
from dovetail.errors import EngineDead, Overloaded
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.stats import RequestStats, StepStats
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt, VectorPrompt
from dovetail.observability.caller import CALLER
from dovetail.observability.stats import StatLoggers
from dovetail.observability.supervise import supervised
from dovetail.registry import hooks
from dovetail.structured_output.compiler import ConstraintCompiler

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Prepared = Callable[["AsyncEngine"], None]
Watch = Callable[[], TextWatch]
"""Creates the watch that reads a completion's text and finds its end."""

TICK_PERIOD_S = 1.0
FLUSH_PERIOD_S = 5.0
STOP_WAIT_S = 5.0
# A loading engine reads no messages; after this time the pipe from its parent is closed.
ABANDON_WAIT_S = 0.3
ATTACH_LIMIT_S = 60.0
# Time for one of several engines that share experts to report why it died.
SHARERS_WAIT_S = 0.3


class AsyncEngine(EngineOperations):
    """One model's engines. Created by `start` or `attach`; used only in that event loop."""

    def __init__(
        self, spec: EngineSpec, ends: Sequence[tuple[EngineSpec, ClientEnd, EngineHost | None]]
    ) -> None:
        self.spec = spec
        self._loop = asyncio.get_running_loop()
        listener = Listener(outputs=self._deliver, step=self._note_step, death=self._note_death)
        self._connections = [
            EngineConnection(
                number, own, end, host, listener, is_elsewhere=own.engine in spec.elsewhere
            )
            for number, (own, end, host) in enumerate(ends)
        ]
        self._routing = Routing(spec, self._connections)
        self._is_owner = any(host is not None for _, _, host in ends)
        self._mailboxes: dict[int, Mailbox] = {}
        self._homes: dict[int, EngineConnection] = {}
        self._keys: dict[str, set[int]] = {}
        self._serials = itertools.count()
        self._is_draining = self._is_shut_down = False
        self._tasks: list[asyncio.Task[None]] = []
        self._tidying: list[asyncio.Task[None]] = []
        self._stats = StatLoggers([])
        self._hooks = hooks.manager_of(())
        self.text_process = (
            TextProcess(spec, lambda: sum(self.load()) > 0) if spec.has_tokenizer else None
        )
        output = spec.run.structured_output if spec.has_tokenizer else None
        self.constraint_compiler = None if output is None else ConstraintCompiler(output)

    @classmethod
    async def start(
        cls,
        spec: EngineSpec,
        *,
        in_process: bool = False,
        prepares: bool = False,
        elsewhere: Sequence[EngineHost] = (),
        prepared: Prepared = lambda _: None,
    ) -> AsyncEngine:
        """Start engines, in child processes or one in a thread of this process, followed by those
        of `spec.elsewhere`, which are already starting.

        `prepares`: the constraint compiler is started too. `prepared` gets the engine when it only
        waits for the processes: all but requests may be prepared. Raises: ConfigError of an engine;
        EngineDead if one died while starting.
        """
        hosts = started(spec, elsewhere, in_process=in_process)
        engine = cls(spec, [(own, host.end, host) for own, host in hosts])
        for connection, (_, host) in zip(engine._connections, hosts, strict=True):
            host.watch(connection.note_exit)
        try:
            await engine._connect(prepared=prepared)
            if prepares and engine.constraint_compiler is not None:
                engine.constraint_compiler.start()
        except BaseException:
            engine._is_shut_down = True
            for connection in engine._connections:
                connection.close(EngineDead("the engine did not start."))
            await engine._close_compiler()
            await asyncio.gather(*(closed(host, ABANDON_WAIT_S) for _, host in hosts))
            raise
        for own, _ in hosts:
            note_up(own, 1)
            hooks.tell(hooks.engine_started, {"spec": own}, using=engine._hooks)
        return engine

    @classmethod
    async def attach(
        cls, addresses: Sequence[str], spec: EngineSpec, *, process: int = 0
    ) -> AsyncEngine:
        """Return engines that another API process has started. `process` is this one's number.
        Raises: EngineDead if one does not answer."""
        ends = [client_end(address) for address in addresses]
        engine = cls(spec, [(own, end, None) for own, end in zip(spec.every(), ends, strict=True)])
        try:
            async with asyncio.timeout(ATTACH_LIMIT_S):
                await engine._connect(process)
        except BaseException as error:
            for end in ends:
                end.close()
            if isinstance(error, TimeoutError):
                where = ", ".join(addresses)
                raise EngineDead("the engine does not answer.", where=where) from None
            raise
        if engine.constraint_compiler is not None:
            engine.constraint_compiler.start()
        return engine

    async def _connect(self, process: int = 0, prepared: Prepared = lambda _: None) -> None:
        """Connect to the engines, load the tokenizer, and wait until the engines are ready."""
        for connection in self._connections:
            connection.greet()
        self._stats = StatLoggers.build(self.spec)
        self._hooks = hooks.manager_of(self.spec.hooks)
        self.tokenizer = await self._loop.run_in_executor(None, load_tokenizer, self.spec)
        self.vocabularies = Vocabularies(self.spec, self.tokenizer)
        self._input = InputProcessor(self.spec, self.vocabularies, name=self.name)
        self.media_words = self._input.media_words
        self._pooled_input = PooledInput(self.spec, self.vocabularies, self._input, self.name)
        prepared(self)
        await asyncio.gather(*(connection.wait_ready() for connection in self._connections))
        for connection in self._connections:
            connection.verify_started()
        self._routing.open(process)
        self._tasks = [supervised("engine-steps", self._tick)]

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
        """Return why all engines died; None while one is alive."""
        return common_death(self._connections)

    @property
    def is_alive(self) -> bool:
        """Return whether an engine is alive and this has not been shut down."""
        return bool(self._living()) and not self._is_shut_down

    @property
    def asleep(self) -> tuple[str, ...]:
        """Return the parts that sleep if all live engines sleep; then no requests are accepted."""
        states = [connection.asleep for connection in self._living()]
        return states[0] if states and all(states) else ()

    def _living(self) -> list[EngineConnection]:
        return [connection for connection in self._connections if connection.is_alive]

    def states(self) -> list[EngineState]:
        """Return the state of each engine, in the order of their numbers."""
        return [connection.state() for connection in self._connections]

    def given_up(self) -> dict[int, str]:
        """Return the death reasons of dead engines, by number."""
        return {s.engine: s.reason for s in self.states() if s.reason is not None}

    def give_up(self, engines: Mapping[int, str]) -> None:
        """Mark engines as dead, by number, for the reasons that another process reported."""
        for connection in self._connections:
            if connection.spec.engine in engines:
                connection.die(engines[connection.spec.engine])

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

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        watch: Watch | None = None,
        is_whole: bool = False,
        **how: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's outputs until it is finished. Closing the generator aborts it.

        `how`: further arguments of InputProcessor.prepare, by name. With `is_whole` there is one
        output, at the end, or before an error with the result so far. Raises: RequestError if the
        request is refused, RequestFault if it ends with an error, EngineDead, EngineAsleep,
        Overloaded.
        """
        self._verify_open()
        if self.asleep:
            raise asleep_error()
        await self.learn_of(how.get("adapter", ""))
        key = next(self._serials)
        prepare = partial(self._input.prepare, prompt, params, request_id, serial=key, **how)
        prepared = await self._prepared(prompt, prepare)
        outputs = self._outputs(key, prepared, watch, is_whole=is_whole)
        async with aclosing(followed(prepared, outputs)) as outputs:
            async for output in outputs:
                yield output

    async def read(self, prompt: MediaPrompt | VectorPrompt, adapter: str = "") -> PlacedPrompt:
        """Convert a prompt of media or vectors to token ids and parts. Raises: RequestError"""
        return await self._loop.run_in_executor(None, self._input.read, prompt, adapter)

    async def pool(
        self, prompt: Prompt, params: PoolingParams, request_id: str, **how: Any
    ) -> RequestOutput:
        """Return the result of pooling a prompt. Cancelling the call aborts it.

        `how`: further arguments of PooledInput.prepare, by name. Raises: as `generate`
        """
        self._verify_open()
        if self.asleep:
            raise asleep_error()
        await self.learn_of(how.get("adapter", ""))
        key = next(self._serials)
        prepare = partial(self._pooled_input.prepare, prompt, params, request_id, serial=key, **how)
        prepared = await self._prepared(prompt, prepare)
        async with aclosing(followed(prepared, self._outputs(key, prepared, None))) as outputs:
            return await anext(outputs)

    def stream(self, prepared: PreparedRequest) -> AsyncGenerator[RequestOutput, None]:
        """Return the output of a request that the caller has prepared, as one (see `generate`)."""
        return self._outputs(next(self._serials), prepared, None, is_whole=True)

    async def _outputs(
        self, key: int, prepared: PreparedRequest, watch: Watch | None, *, is_whole: bool = False
    ) -> AsyncGenerator[RequestOutput, None]:
        """Send a request and yield its outputs until it is finished."""
        self._verify_open()
        mailbox = self._submit(key, prepared, watch, is_whole=is_whole)
        try:
            while True:
                output = await mailbox.get()
                yield output
                if output.is_finished:
                    return
        finally:
            self._forget(key, prepared.request_id)

    async def _prepared(
        self, prompt: Prompt, prepare: Callable[[], PreparedRequest]
    ) -> PreparedRequest:
        """Return the checked request of a prompt; slow preparation runs in a thread."""
        if self._input.is_quick(prompt):
            return prepare()
        return await self._loop.run_in_executor(None, prepare)

    def _submit(
        self, key: int, prepared: PreparedRequest, watch: Watch | None, *, is_whole: bool
    ) -> Mailbox:
        """Send a request to an engine; return the mailbox for its outputs."""
        home = self._routing.home_of(prepared)
        mailbox = self._mailboxes[key] = Mailbox()
        self._homes[key] = home
        self._keys.setdefault(prepared.request_id, set()).add(key)
        home.output.add(key, prepared, CALLER.get(), watch, is_whole=is_whole)
        try:
            home.send(owned(prepared.requests))
        except BaseException:
            home.output.drop(key)  # never sent: the request is refused, not finished
            self._forget(key, prepared.request_id)
            raise
        return mailbox

    def _forget(self, key: int, request_id: str) -> None:
        """Forget a request; abort what is still running in its engine."""
        self._mailboxes.pop(key, None)
        keys = self._keys.get(request_id)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys[request_id]
        home = self._homes.pop(key)
        ids, stats = home.output.drop(key)
        if stats is not None:
            self._record(stats)
        home.abort(ids)

    async def abort(self, request_id: str) -> None:
        """Abort the requests of this id; their generators finish with reason "abort"."""
        for key in tuple(self._keys.get(request_id, ())):
            home = self._homes[key]
            home.abort(home.output.unfinished_ids(key))

    async def call_each(
        self, operation: Operation[Result], timeout_s: float | None = None
    ) -> list[Result]:
        """Run an operation in every live engine; return the result of each."""
        self._verify_open()
        calls = [connection.calls.call(operation, timeout_s) for connection in self._living()]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        errors = [one for one in ended if isinstance(one, BaseException)]
        real = [error for error in errors if not isinstance(error, EngineDead)]
        if real or len(errors) == len(ended):
            raise (real or errors)[0]
        return [one for one in ended if not isinstance(one, BaseException)]

    def _forget_prefixes(self) -> None:
        for connection in self._connections:
            self._routing.forget(connection)

    def _verify_open(self) -> None:
        reason = self.death_reason
        if reason is not None:
            raise EngineDead(reason)
        if self._is_shut_down or self._is_draining:
            raise Overloaded("the server is shutting down and takes no new requests.")

    def _deliver(self, processed: Processed) -> None:
        for key, output in processed.outputs:
            mailbox = self._mailboxes.get(key)
            if mailbox is not None:
                mailbox.put(output)
        for key, error in processed.errors:
            mailbox = self._mailboxes.get(key)
            if mailbox is not None:
                mailbox.fail(error)
        tokens = processed.tokens()
        if tokens is not None:
            self._stats.tokens(tokens)
        for stats in processed.stats:
            self._record(stats)

    def _note_step(self, stats: StepStats) -> None:
        if self._is_owner:  # with several API processes, only one counts the steps
            self._stats.step(stats)

    def _end_all(self, connection: EngineConnection, error: EngineDead) -> None:
        """End every request of an engine with an error; their generators clean up."""
        for key in [key for key, home in self._homes.items() if home is connection]:
            self._mailboxes[key].fail(error)
            _, stats = connection.output.drop(key, error.what)
            if stats is not None:
                self._record(stats)

    def _record(self, stats: RequestStats) -> None:
        self._stats.request(stats)
        hooks.tell(hooks.request_finished, {"stats": stats}, using=self._hooks)

    def _note_death(self, number: int) -> None:
        """Fail the requests of an engine that has died; the others continue."""
        connection = self._connections[number]
        reason = connection.death_reason or "unknown cause"
        self._end_all(connection, EngineDead(reason))
        self._routing.forget(connection)
        if self.spec.shares_experts:
            self._loop.call_later(SHARERS_WAIT_S, self._end_sharers, connection)
        if connection.host is not None:
            note_up(connection.spec, 0)
            # Report final zeros, so that it does not appear to run forever.
            self._stats.step(
                StepStats(num_running=0, num_waiting=0, kv_usage=0.0, engine=connection.spec.engine)
            )
            if self._living():  # a hung engine still holds memory
                self._tidying.append(self._loop.create_task(closed(connection.host, 0.0)))
        if not self._living():
            self._ended.set()
        hooks.tell(hooks.engine_stopped, {"reason": reason}, using=self._hooks)

    def _end_sharers(self, dead: EngineConnection) -> None:
        """Kill the engines that need the experts of one that has died."""
        for connection in self._living():
            connection.die(f"{dead.name}, whose experts it needs, has ended: {dead.death_reason}")

    async def _tick(self) -> None:
        """Check the engines for steps that take too long, and flush the stat loggers regularly."""
        flushed_s = looked_s = time.monotonic()
        while self.is_alive:
            late_s = time.monotonic() - looked_s - TICK_PERIOD_S
            for connection in self._connections:
                if late_s > TICK_PERIOD_S:  # this process was suspended, and has messages to read
                    connection.note_pause(late_s)
                connection.check_step()
            looked_s = time.monotonic()
            if time.monotonic() - flushed_s >= FLUSH_PERIOD_S:
                flushed_s = time.monotonic()
                self._stats.flush()
            await asyncio.sleep(TICK_PERIOD_S)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for running ones; return whether all have finished."""
        self._is_draining = True
        deadline_s = time.monotonic() + timeout_s
        while self._mailboxes and self.is_alive and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        return not self._mailboxes

    async def _close_compiler(self) -> None:
        if self.constraint_compiler is not None:
            await self.constraint_compiler.close()

    async def shutdown(self) -> None:
        """Shut down the engines, or disconnect from another process's. May be called twice."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._ended.set()
        self._routing.close()
        for task in self._tasks:
            task.cancel()
        error = EngineDead("the engine was shut down.")
        stopped = self._living()
        for connection in self._connections:
            self._end_all(connection, error)
            connection.close(error)
        await self._close_compiler()
        if self.text_process is not None:
            await self.text_process.close()
        await asyncio.gather(*self._tidying)
        await asyncio.gather(*(closed(host, STOP_WAIT_S) for host in self.hosts))
        for connection in self._connections:
            connection.end.close()
        self._stats.flush()
        await self._loop.run_in_executor(None, self._stats.close)
        for _ in stopped:
            hooks.tell(hooks.engine_stopped, {"reason": None}, using=self._hooks)
