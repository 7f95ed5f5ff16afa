"""AsyncEngine: an engine as an API process sees it: prompts in, deltas out, one event loop.

The engine runs in a child process, in a thread, or belongs to another API process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar

from dovetail.engine.client.calls import Calls
from dovetail.engine.client.host import EngineHost, EngineProcess, EngineThread, closed
from dovetail.engine.client.input import InputProcessor, PreparedRequest, Prompt, load_tokenizer
from dovetail.engine.client.mailbox import Mailbox
from dovetail.engine.client.output import OutputProcessor, Processed
from dovetail.engine.client.outputs import RequestOutput
from dovetail.engine.client.stop import TextWatch
from dovetail.engine.client.text_process import TextProcess
from dovetail.engine.faults import error_of
from dovetail.engine.ipc.transport import ClientEnd, ZmqClientEnd
from dovetail.engine.messages import (
    Abort,
    AddRequests,
    Dead,
    FromEngine,
    GetSleepStatus,
    Hello,
    Operation,
    Phase,
    Ping,
    Ready,
    ResetPrefixCache,
    Return,
    Sleep,
    SleepStatus,
    StartFailed,
    Updates,
    WakeUp,
)
from dovetail.engine.sleep_mode import asleep_error
from dovetail.errors import EngineDead, Overloaded, RequestError
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import EngineSpec
from dovetail.interfaces.stats import RequestStats
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.observability.caller import CALLER
from dovetail.observability.stats import StatLoggers
from dovetail.registry import hooks
from dovetail.structured_output.compiler import ConstraintCompiler

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PING_PERIOD_S = 1.0
FLUSH_PERIOD_S = 5.0
STOP_WAIT_S = 5.0
# An engine that is still loading hears nothing; the pipe from its parent is closed after this time.
ABANDON_WAIT_S = 0.3
ATTACH_LIMIT_S = 60.0
# Longer prompts are tokenized in a thread, so that other requests' streams keep flowing.
INLINE_PROMPT_CHARS = 2048
START_FIX = (
    "see the engine's log lines above; if they name no cause, memory may have run out: lower "
    "--kv-cache-memory-bytes or choose a smaller model."
)


class AsyncEngine:
    """One engine. Made by `start` or `attach`; used within the event loop that made it."""

    def __init__(self, spec: EngineSpec, end: ClientEnd, host: EngineHost | None) -> None:
        self.spec = spec
        self.tokenizer: Tokenizer
        self.death_reason: str | None = None
        self.phases: list[Phase] = []
        self._end = end
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._input: InputProcessor
        self._output: OutputProcessor
        self._mailboxes: dict[int, Mailbox] = {}
        self._keys: dict[str, set[int]] = {}
        self._serials = itertools.count()
        self._counts = (0, 0)
        self._num_steps = 0
        self._heard_s = self._busy_since_s = time.monotonic()
        self._is_draining = False
        self._is_shut_down = False
        self._tasks: list[asyncio.Task[None]] = []
        self._calls = Calls(end.send)
        self.asleep: tuple[str, ...] = ()
        self._stats = StatLoggers([])
        self._hooks = hooks.manager_of(())
        self.text_process = (
            TextProcess(spec, lambda: sum(self.load()) > 0) if spec.has_tokenizer else None
        )
        structured_output = spec.run.structured_output
        self.constraint_compiler = (
            ConstraintCompiler(structured_output) if structured_output is not None else None
        )

    @classmethod
    async def start(
        cls, spec: EngineSpec, *, in_process: bool = False, prepares: bool = False
    ) -> AsyncEngine:
        """Return a running engine, in a child process or in a thread of this one.

        `prepares`: what compiles constraints is started meanwhile, before a request needs it.
        Raises: ConfigError as the engine raised it; EngineDead when it ended while starting.
        """
        host: EngineHost = EngineThread(spec) if in_process else EngineProcess(spec)
        engine = cls(spec, host.end, host)
        host.watch(engine._note_exit)
        try:
            if prepares and engine.constraint_compiler is not None:
                engine.constraint_compiler.start()
            await engine._connect()
        except BaseException:
            engine._is_shut_down = True
            await engine._close_compiler()
            await closed(host, ABANDON_WAIT_S)
            raise
        hooks.tell(hooks.engine_started, {"spec": spec}, using=engine._hooks)
        return engine

    @classmethod
    async def attach(cls, address: str, spec: EngineSpec) -> AsyncEngine:
        """Return an engine that another API process has started.

        Raises: EngineDead when it does not answer.
        """
        engine = cls(spec, ZmqClientEnd(address), None)
        try:
            async with asyncio.timeout(ATTACH_LIMIT_S):
                await engine._connect()
        except TimeoutError:
            engine._end.close()
            raise EngineDead("the engine does not answer.", where=address) from None
        except BaseException:
            engine._end.close()
            raise
        if engine.constraint_compiler is not None:
            engine.constraint_compiler.start()
        return engine

    async def _connect(self) -> None:
        """Introduce this process, load the tokenizer meanwhile, and wait for the engine."""
        self._end.attach(self._loop, self._hear, self._note_loss)
        self._end.send(Hello())
        self._stats = StatLoggers.build(self.spec)
        self._hooks = hooks.manager_of(self.spec.hooks)
        self.tokenizer = await self._loop.run_in_executor(None, load_tokenizer, self.spec)
        self._input = InputProcessor(self.spec, self.tokenizer, name=self._end.name)
        self._output = OutputProcessor(self.tokenizer)
        await self._ready
        self._tasks = [self._loop.create_task(self._tick()), self._loop.create_task(self._ping())]

    @property
    def address(self) -> str | None:
        """Return where further API processes can attach; None for an engine in a thread."""
        return self._host.address if self._host is not None else None

    @property
    def name(self) -> str:
        """Return the name by which the engine knows this API process."""
        return self._end.name

    @property
    def is_alive(self) -> bool:
        """Return whether the engine is up and has not been shut down."""
        return self.death_reason is None and not self._is_shut_down

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the engine last said anything; it is asked every second."""
        return time.monotonic() - self._heard_s

    def load(self) -> tuple[int, int]:
        """Return (running, waiting), with what the engine has not yet answered as waiting."""
        running, waiting = self._counts
        return running, max(waiting, self._output.num_unfinished - running)

    def default_params(self, **fields: Any) -> SamplingParams:
        """Return the model's default sampling params overlaid by `fields`."""
        return SamplingParams(**{**self.spec.default_sampling, **fields})

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        watch: Callable[[], TextWatch] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's outputs until it is finished. Closing the generator aborts it.

        `watch` makes what looks for the stop strings of a completion, and is shown all its text.
        Raises: RequestError when the request is refused, RequestFault when it ends with an error,
        EngineDead when the engine is gone, EngineAsleep, Overloaded while draining.
        """
        self._verify_open()
        if self.asleep:
            raise asleep_error()
        key = next(self._serials)
        prepared = await self._prepare(prompt, params, request_id, key, priority, cache_salt)
        self._verify_open()
        mailbox = self._submit(key, prepared, watch)
        try:
            while True:
                output = await mailbox.get()
                yield output
                if output.is_finished:
                    return
        finally:
            self._forget(key, request_id)

    async def _prepare(
        self, prompt: Prompt, params: SamplingParams, request_id: str, key: int,
        priority: int, cache_salt: str,
    ) -> PreparedRequest:  # fmt: skip
        def prepare() -> PreparedRequest:
            return self._input.prepare(
                prompt, params, request_id, serial=key, priority=priority, cache_salt=cache_salt
            )

        if len(prompt) <= INLINE_PROMPT_CHARS:
            return prepare()
        return await self._loop.run_in_executor(None, prepare)

    def _submit(
        self, key: int, prepared: PreparedRequest, watch: Callable[[], TextWatch] | None
    ) -> Mailbox:
        """Send a request to the engine; return where its outputs will arrive."""
        mailbox = self._mailboxes[key] = Mailbox()
        self._keys.setdefault(prepared.request_id, set()).add(key)
        if not len(self._output):
            self._busy_since_s = time.monotonic()
        self._output.add(key, prepared, CALLER.get(), watch)
        try:
            self._end.send(AddRequests(prepared.requests))
        except BaseException as error:
            self._output.drop(key)  # never sent: it is refused, not ended
            self._forget(key, prepared.request_id)
            if isinstance(error, OverflowError):
                raise RequestError(f"a number is too large: {error}") from None
            raise
        return mailbox

    def _forget(self, key: int, request_id: str) -> None:
        """Let go of a request; what of it still runs in the engine ends."""
        self._mailboxes.pop(key, None)
        keys = self._keys.get(request_id)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys[request_id]
        ids, stats = self._output.drop(key)
        if stats is not None:
            self._record(stats)
        self._abort_in_engine(ids)

    def _abort_in_engine(self, ids: tuple[str, ...]) -> None:
        if ids and self.is_alive:
            try:
                self._end.send(Abort(ids))
            except EngineDead as error:
                self._die(error.what)

    async def abort(self, request_id: str) -> None:
        """End the requests of this id; their generators finish with reason "abort"."""
        for key in tuple(self._keys.get(request_id, ())):
            self._abort_in_engine(self._output.unfinished_ids(key))

    async def call(self, operation: Operation[Result], timeout_s: float | None = None) -> Result:
        """Have the engine do something beside generating; return what comes of it.

        Raises: what the engine raised; EngineDead; Overloaded while draining and after `timeout_s`
        """
        self._verify_open()
        return await self._calls.call(operation, timeout_s)

    async def reset_prefix_cache(self) -> None:
        """Have the engine find no prefix that it has cached so far.

        Raises: EngineDead; Overloaded when it does not answer within `reply_timeout_s`.
        """
        await self.call(ResetPrefixCache(), self.spec.reply_timeout_s)

    async def sleep(self, level: int = 1, *, waits: bool = False) -> None:
        """Have the engine release its memory, in whatever time that takes; new requests are
        refused, those under way end now or, if it `waits`, once they have finished.

        Raises: RequestError, EngineDead
        """
        await self.call(Sleep(level=level, waits=waits))

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Have the engine take the memory of "weights", "kv_cache" (none named: both) again.

        Raises: RequestError, EngineDead
        """
        await self.call(WakeUp(tuple(tags)))

    async def is_sleeping(self) -> bool:
        """Return whether any of the engine sleeps. Raises: EngineDead"""
        return bool((await self.call(GetSleepStatus())).asleep)

    def _verify_open(self) -> None:
        if self.death_reason is not None:
            raise EngineDead(self.death_reason)
        if self._is_shut_down or self._is_draining:
            raise Overloaded("the server is shutting down and takes no new requests.")

    def _hear(self, message: FromEngine) -> None:
        """Take a message of the engine."""
        self._heard_s = time.monotonic()
        match message:
            case Updates(updates, stats):
                if updates:
                    self._deliver(self._output.process(updates))
                for step in stats:
                    self._counts = (step.num_running, step.num_waiting)
                    if self._host is not None:  # of several API processes one counts the steps
                        self._stats.step(step)
            case Return():
                self._calls.take(message)
            case SleepStatus(asleep):
                self.asleep = asleep
            case Phase(name, duration_s):
                self.phases.append(message)
                logger.info("engine start-up: %s took %.2f s", name, duration_s)
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(message)
            case StartFailed(fault):
                self._fail_start(error_of(fault))
            case Dead(reason):
                self._die(reason)

    def _deliver(self, processed: Processed) -> None:
        self._abort_in_engine(tuple(processed.aborts))
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

    def _end_all(self, error: EngineDead) -> None:
        """End every request of this process with an error; their generators tidy up."""
        for key, mailbox in self._mailboxes.items():
            mailbox.fail(error)
            _, stats = self._output.drop(key, error.what)
            if stats is not None:
                self._record(stats)

    def _record(self, stats: RequestStats) -> None:
        self._stats.request(stats)
        hooks.tell(hooks.request_finished, {"stats": stats}, using=self._hooks)

    def _note_exit(self, reason: str) -> None:
        """Learn from another thread that the engine has ended."""
        try:
            self._loop.call_soon_threadsafe(self._note_exit_soon, reason)
        except RuntimeError:
            logger.debug("the event loop is closed already: %s", reason)

    def _note_exit_soon(self, reason: str) -> None:
        # Last words may still lie in the socket: they name the cause, an exit status does not.
        self._loop.call_later(0.05, self._die, reason)

    def _note_loss(self, reason: str) -> None:
        """Learn that the connection broke; a parent soon knows more, so it may speak first."""
        self._loop.call_later(0.0 if self._host is None else 0.2, self._die, reason)

    def _fail_start(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    def _die(self, reason: str) -> None:
        """End everything that waits for this engine. Only the first reason counts."""
        if self._is_shut_down or self.death_reason is not None:
            return
        self.death_reason = reason
        if not self._ready.done():
            # A start-up failure is told over the socket just before the process ends.
            self._loop.call_later(0.2, self._fail_start, EngineDead(reason, fix=START_FIX))
            return
        logger.error("the engine is dead: %s", reason)
        self._end_all(EngineDead(reason))
        self._calls.fail(EngineDead(reason))
        hooks.tell(hooks.engine_stopped, {"reason": reason}, using=self._hooks)

    async def _tick(self) -> None:
        """Look after the step that the engine is in, and let stat loggers write now and then."""
        flushed_s = time.monotonic()
        while self.is_alive:
            self._check_step()  # event loops deliver what has come before timers run out
            if time.monotonic() - flushed_s >= FLUSH_PERIOD_S:
                flushed_s = time.monotonic()
                self._stats.flush()
            await asyncio.sleep(PING_PERIOD_S)

    async def _ping(self) -> None:
        """Ask for a sign of life, again and again; an engine in a long step answers after it."""
        while self.is_alive:
            try:
                status = await self._calls.call(Ping())
            except EngineDead as error:
                self._die(error.what)
                return
            self._num_steps = status.num_steps
            self._counts = (status.num_running, status.num_waiting)
            await asyncio.sleep(PING_PERIOD_S)

    def _check_step(self) -> None:
        """Give an engine up that has been in one step for longer than it may be."""
        limit_s = self.spec.step_timeout_s
        if limit_s is None or sum(self.load()) == 0:
            return
        age_s = time.monotonic() - max(self._heard_s, self._busy_since_s)
        if age_s > limit_s:
            self._die(f"a step has taken {age_s:.0f} s, --engine-step-timeout is {limit_s:g} s.")

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for those under way; return whether all have finished."""
        self._is_draining = True
        deadline_s = time.monotonic() + timeout_s
        while self._mailboxes and self.is_alive:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            await asyncio.sleep(min(0.02, left_s))
        return not self._mailboxes

    async def _close_compiler(self) -> None:
        if self.constraint_compiler is not None:
            await self.constraint_compiler.close()

    async def shutdown(self) -> None:
        """End the engine (or leave it, when another process started it). May be called twice."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for task in self._tasks:
            task.cancel()
        gone = EngineDead("the engine was shut down.")
        self._end_all(gone)
        self._calls.fail(gone)
        await self._close_compiler()
        if self.text_process is not None:
            await self.text_process.close()
        if self._host is not None:
            await closed(self._host, STOP_WAIT_S)
        self._end.close()
        self._stats.flush()
        await self._loop.run_in_executor(None, self._stats.close)
        if self.death_reason is None:
            hooks.tell(hooks.engine_stopped, {"reason": None}, using=self._hooks)
