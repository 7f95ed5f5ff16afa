"""AsyncEngine: a model's interface in an API process: prompts in, deltas out, one event loop.

An engine is a child process, a thread, or one that another API process started. The router chooses
one for each request (`routing`); every other call goes to all engines."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from functools import partial
from typing import Any

from dovetail.engine.client.connection import EngineConnection, note_life
from dovetail.engine.client.fleet import ATTACH_LIMIT_S, SHARERS_WAIT_S, Ends, Fleet
from dovetail.engine.client.host import EngineHost, closed, started
from dovetail.engine.client.pooling.input_processor import PooledInput
from dovetail.engine.client.requests.gated import followed, owned
from dovetail.engine.client.requests.input_processor import (
    InputProcessor,
    PreparedRequest,
    Prompt,
    load_tokenizer,
)
from dovetail.engine.client.restarts import MOST_DEATHS, Life, RunAgain, ending
from dovetail.engine.client.results.mailbox import Mailbox
from dovetail.engine.client.results.output_processor import Processed
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.engine.client.results.stop import TextWatch
from dovetail.engine.client.text.text_process import TextProcess
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.ipc.socket_ends import client_end
from dovetail.engine.ipc.transport import lock_file_of
from dovetail.engine.parts.sleep_mode import asleep_error
from dovetail.errors import DovetailError, EngineDead
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.stats import RequestStats
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt, VectorPrompt
from dovetail.observability.caller import CALLER
from dovetail.observability.stats import StatLoggers
from dovetail.observability.supervise import supervised
from dovetail.processes.file_lock import locked
from dovetail.registry import hooks
from dovetail.structured_output.compiler import ConstraintCompiler

Prepared = Callable[["AsyncEngine"], None]
Watch = Callable[[], TextWatch]
"""Creates the watch that reads a completion's text and finds its end."""

STOP_WAIT_S = 5.0
# A loading engine reads no messages; after this time the pipe from its parent is closed.
ABANDON_WAIT_S = 0.3


class AsyncEngine(Fleet):
    """One model's engines. Created by `start` or `attach`; used only in that event loop."""

    def __init__(self, spec: EngineSpec, ends: Ends, addresses: Sequence[str] = ()) -> None:
        super().__init__(spec, ends, addresses)
        self._mailboxes: dict[int, Mailbox] = {}
        self._homes: dict[int, EngineConnection] = {}
        self._keys: dict[str, set[int]] = {}
        self._aborted: set[int] = set()
        self._suspects = asyncio.Lock()
        self._serials = itertools.count()
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
        for (own, host), life in zip(hosts, engine.lives, strict=True):
            note_life(own, life, is_removed=bool(host.absence))
            if not host.absence:
                hooks.tell(hooks.engine_started, {"spec": own}, using=engine._hooks)
        return engine

    @classmethod
    async def attach(
        cls, addresses: Sequence[str], spec: EngineSpec, *, process: int = 0
    ) -> AsyncEngine:
        """Return engines that another API process has started. `process` is this one's number.
        Raises: EngineDead if one does not answer."""
        ends = [client_end(address) for address in addresses]
        all_ends = [(own, end, None) for own, end in zip(spec.every(), ends, strict=True)]
        engine = cls(spec, all_ends, addresses)
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
        there = self._living()
        for connection in there:
            connection.greet()
        self._stats = StatLoggers.build(self.spec)
        self._hooks = hooks.manager_of(self.spec.hooks)
        self.tokenizer = await self._loop.run_in_executor(None, load_tokenizer, self.spec)
        self.vocabularies = Vocabularies(self.spec, self.tokenizer)
        self._input = InputProcessor(self.spec, self.vocabularies, name=self.name)
        self.media_words = self._input.media_words
        self._pooled_input = PooledInput(self.spec, self.vocabularies, self._input, self.name)
        prepared(self)
        await asyncio.gather(*(connection.wait_ready() for connection in there))
        for connection in there:
            connection.verify_started()
        self.lives = [
            Life(
                pid=connection.pid, reason=connection.death_reason or "", is_over=not connection.pid
            )
            for connection in self._connections
        ]
        self._routing.open(process)
        self._tasks = [supervised("engine-steps", self._tick)]

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
        key, prepared = await self._prepared(self._input, prompt, params, request_id, how)
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
        key, prepared = await self._prepared(self._pooled_input, prompt, params, request_id, how)
        async with aclosing(followed(prepared, self._outputs(key, prepared, None))) as outputs:
            return await anext(outputs)

    def stream(self, prepared: PreparedRequest) -> AsyncGenerator[RequestOutput, None]:
        """Return the output of a request that the caller has prepared, as one (see `generate`)."""
        return self._outputs(next(self._serials), prepared, None, is_whole=True)

    async def _outputs(
        self, key: int, prepared: PreparedRequest, watch: Watch | None, *, is_whole: bool = False
    ) -> AsyncGenerator[RequestOutput, None]:
        """Send a request and yield its outputs until it is finished. It is sent again if its engine
        dies before the first."""
        self._verify_open()
        num_deaths = 0
        async with AsyncExitStack() as stack:
            stack.enter_context(self._listed(key, prepared.request_id))
            await self._wait_for_engine()
            while True:
                mailbox = self._mailboxes[key] = Mailbox(num_deaths)
                try:
                    self._submit(key, prepared, watch, is_whole=is_whole)
                    while True:
                        output = await mailbox.get()
                        yield output
                        if output.is_finished:
                            return
                except RunAgain as lost:
                    num_deaths += lost.is_death
                    await self._wait_to_run_again(lost, num_deaths, stack)
                finally:
                    self._forget(key)

    @contextmanager
    def _listed(self, key: int, request_id: str) -> Iterator[None]:
        """Have `abort` find a request meanwhile, by its id."""
        keys = self._keys.setdefault(request_id, set())
        keys.add(key)
        try:
            yield
        finally:
            self._aborted.discard(key)
            keys.discard(key)
            if not keys:
                del self._keys[request_id]

    async def _wait_to_run_again(
        self, lost: RunAgain, num_deaths: int, stack: AsyncExitStack
    ) -> None:
        """Wait until a request can be sent again. Before its last attempt that includes others of
        which that is true: one of them kills engines, and must not take the rest along."""
        from dovetail.observability import metrics  # the import decides how metrics are stored

        try:
            if lost.is_death and num_deaths == MOST_DEATHS - 1:
                await stack.enter_async_context(self._suspects)
                addresses = self._addresses or self.addresses_for(0)
                if (file := lock_file_of(addresses)) is not None:  # of other API processes too
                    await stack.enter_async_context(locked(file))
            if self.spec.shares_experts:  # the others, which are alive still, are about to end
                await asyncio.sleep(2 * SHARERS_WAIT_S)
            await self._wait_for_engine()
        except BaseException:
            if lost.stats is not None:
                self._record(lost.stats)
            raise
        metrics.REQUESTS_RUN_AGAIN.inc()

    async def _prepared(
        self, own: Any, prompt: Prompt, params: Any, request_id: str, how: dict[str, Any]
    ) -> tuple[int, PreparedRequest]:
        """Return a new request's key and its checked form, which an input processor of its `own`
        makes; slow preparation runs in a thread. Raises: as `generate`"""
        self._verify_open()
        if self.asleep:
            raise asleep_error()
        await self.learn_of(how.get("adapter", ""))
        key = next(self._serials)
        prepare = partial(own.prepare, prompt, params, request_id, serial=key, **how)
        if self._input.is_quick(prompt):
            return key, prepare()
        return key, await self._loop.run_in_executor(None, prepare)

    def _submit(
        self, key: int, prepared: PreparedRequest, watch: Watch | None, *, is_whole: bool
    ) -> None:
        """Send a request to an engine. Its outputs go to the mailbox of its key."""
        home = self._homes[key] = self._routing.home_of(prepared)
        home.output.add(key, prepared, CALLER.get(), watch, is_whole=is_whole)
        try:
            home.send(owned(prepared.requests))
        except BaseException:
            home.output.drop(key)  # never sent: the request is refused, not finished
            raise
        if key in self._aborted:
            home.abort(home.output.unfinished_ids(key))

    def _forget(self, key: int) -> None:
        """Forget a request's engine; abort what is still running there."""
        self._mailboxes.pop(key, None)
        home = self._homes.pop(key, None)
        if home is None:
            return  # no engine took it
        ids, stats = home.output.drop(key)
        if stats is not None:
            self._record(stats)
        home.abort(ids)

    async def abort(self, request_id: str) -> None:
        """Abort the requests of this id; their generators finish with reason "abort"."""
        for key in tuple(self._keys.get(request_id, ())):
            self._aborted.add(key)  # if it waits for an engine
            if key in self._homes:
                home = self._homes[key]
                home.abort(home.output.unfinished_ids(key))

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

    def _end_all(self, connection: EngineConnection, reason: str) -> None:
        """End every request of an engine, or have it run again; their generators clean up."""
        has_left = connection.condition.is_leaving
        runs_again = (self.spec.max_restarts > 0 or has_left) and self.is_alive
        for key in [key for key, home in self._homes.items() if home is connection]:
            mailbox = self._mailboxes[key]
            error: DovetailError = EngineDead(reason)
            if runs_again:
                num_deaths = mailbox.num_deaths - has_left
                error = ending(reason, num_deaths, has_begun=mailbox.has_begun)
            _, stats = connection.output.drop(key, error.what)
            if isinstance(error, RunAgain):
                error.stats, error.is_death = stats, not has_left
            elif stats is not None:
                self._record(stats)
            mailbox.fail(error)

    def _record(self, stats: RequestStats) -> None:
        self._stats.request(stats)
        hooks.tell(hooks.request_finished, {"stats": stats}, using=self._hooks)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for running ones; return whether all have finished."""
        self._is_draining = True
        deadline_s = time.monotonic() + timeout_s
        while self._keys and self.is_alive and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        return not self._keys

    async def _close_compiler(self) -> None:
        if self.constraint_compiler is not None:
            await self.constraint_compiler.close()

    async def shutdown(self) -> None:
        """Shut down the engines, or disconnect from another process's. May be called twice."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._tell_change()
        self._routing.close()
        revivals = tuple(self._revivals.values())
        for task in (*self._tasks, *revivals):
            task.cancel()
        await asyncio.gather(*revivals, return_exceptions=True)
        error = EngineDead("the engine was shut down.")
        stopped = self._living()
        for connection in self._connections:
            self._end_all(connection, error.what)
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
