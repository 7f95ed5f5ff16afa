"""SyncEngines: several engines, each in its own process, with the interface of a SyncEngine.

They are driven by an event loop in its own thread, so that this works in a thread that already has
a loop, as in notebooks. For offline use.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineHost
from dovetail.engine.client.offline.sync_engine import SyncClient, SyncStep
from dovetail.engine.client.requests.input_processor import PreparedRequest
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.engine.parts.sleep_mode import asleep_error
from dovetail.errors import DovetailError, EngineDead, RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.executor import WorkerCall

Result = TypeVar("Result")


class _LoopThread:
    """An event loop that runs in a thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engines", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a coroutine in the loop; return its task."""

        async def create() -> asyncio.Task[Result]:
            return asyncio.get_running_loop().create_task(work)

        return asyncio.run_coroutine_threadsafe(create(), self._loop).result()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop; return its result. An interrupted caller cancels it."""
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task of the loop."""
        self._loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.do(self._loop.shutdown_asyncgens())
        self.do(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncEngines(SyncClient):
    """All engines of one model. Close them with `shutdown`."""

    def __init__(self, spec: EngineSpec, elsewhere: Sequence[EngineHost] = ()) -> None:
        """Start all engines; those of `spec.elsewhere` are already starting.

        Raises: ConfigError, EngineDead
        """
        self._thread = _LoopThread()
        self._is_shut_down = False
        try:
            self._engine = self._thread.do(AsyncEngine.start(spec, elsewhere=elsewhere))
        except BaseException:
            self._thread.close()
            raise
        super().__init__(spec, self._engine.vocabularies)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news: queue.SimpleQueue[tuple[int, RequestOutput | DovetailError]] = (
            queue.SimpleQueue()
        )

    def _refusal(self) -> RequestError | None:
        return asleep_error() if self._engine.asleep else None

    @property
    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return bool(self._tasks)

    def submit(self, prepared: PreparedRequest) -> int:
        """Send a prepared request; return the key of its outputs."""
        key = next(self._serials)
        self._tasks[key] = self._thread.begin(self._follow(key, prepared))
        return key

    async def _follow(self, key: int, prepared: PreparedRequest) -> None:
        """Queue a request's outputs, or the error that ends it, for `step`."""
        try:
            async for output in self._engine.stream(prepared):
                self._news.put((key, output))
        except DovetailError as error:
            self._news.put((key, error))

    def abort(self, key: int) -> None:
        """Abort a request; it has no further output."""
        task = self._tasks.pop(key, None)
        if task is not None:
            self._thread.cancel(task)
            self._thread.do(_ended(task))

    def step(self) -> SyncStep:
        """Wait for outputs; return all available. Raises: EngineDead if no engine is alive"""
        step = SyncStep()
        while not step.outputs and not step.errors:
            for key, news in self._next_news():
                if key not in self._tasks:
                    continue  # it was aborted
                if isinstance(news, DovetailError):
                    step.errors.append((key, news))
                else:
                    step.outputs.append((key, news))
                    if not news.is_finished:
                        continue
                del self._tasks[key]
        reason = self._engine.death_reason
        if reason is not None and step.errors:
            raise EngineDead(reason)
        return step

    def _next_news(self) -> list[tuple[int, RequestOutput | DovetailError]]:
        """Return all available outputs, waiting for the first."""
        news = [self._news.get()]
        try:
            while True:
                news.append(self._news.get_nowait())
        except queue.Empty:
            return news

    def sleep(self, level: int) -> None:
        """Release the engines' memory. Raises: RequestError"""
        self._thread.do(self._engine.sleep(level, waits=True))

    def wake_up(self, tags: Sequence[str]) -> None:
        """Reallocate memory. Raises: RequestError"""
        self._thread.do(self._engine.wake_up(tags))

    @property
    def is_sleeping(self) -> bool:
        """Return whether weights or KV cache are asleep in any engine."""
        return self._thread.do(self._engine.is_sleeping())

    def reset_prefix_cache(self) -> None:
        """Invalidate the engines' cached prefixes. Raises: EngineDead"""
        self._thread.do(self._engine.reset_prefix_cache())

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Run a method on the workers of all ranks; return their answers, engine by engine. Raises:
        RequestError"""
        return self._thread.do(self._engine.collective_rpc(call))

    def load_adapter(self, source: AdapterSource, *, replaces: bool = False) -> None:
        """Load an adapter into the engines and serve it. Raises: RequestError"""
        self._thread.do(self._engine.load_adapter(source, replaces=replaces))

    def unload_adapter(self, name: str) -> None:
        """Stop accepting requests for an adapter in all engines. Raises: RequestError"""
        self._thread.do(self._engine.unload_adapter(name))

    def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that requests may name."""
        return self._thread.do(self._engine.adapters())

    def settle(self) -> None:
        """Abort all running requests; their results are dropped."""
        for key in list(self._tasks):
            self.abort(key)

    def shutdown(self) -> None:
        """Shut down all engines. May be called twice."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self.settle()
        self._thread.do(self._engine.shutdown())
        self._thread.close()


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait until a cancelled task has cleaned up."""
    await asyncio.gather(task, return_exceptions=True)
