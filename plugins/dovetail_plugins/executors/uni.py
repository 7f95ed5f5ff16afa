"""UniExecutor: one worker in the engine's own process.

With `run.async_steps` submit returns immediately: a worker that can run ahead only queues the step
on its device; for others one thread makes every torch call. Without it steps run inside submit.
The device is the worker's.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from dovetail import registry
from dovetail.engine.worker_calls import call_worker, make_worker, too_late
from dovetail.errors import EngineDead
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import (
    BlockLoad,
    Executor,
    Loaded,
    PendingStep,
    Preparation,
    WorkerCall,
)
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.worker import Worker
from dovetail.parallel import engines, groups
from dovetail.registry.blame import described

T = TypeVar("T")
STOP_WAIT_S = 5.0
"""How long shutdown waits for a running step."""


class UniExecutor(Executor):
    """Runs one worker here. A step that raises ends the executor: its rows' state is unknown."""

    info = Info(summary="one worker in the engine process")
    capabilities = frozenset({"async_steps", "collective_rpc", "sleep"})

    def __init__(self, options: Any, run: RunSpec, worker: Selection) -> None:
        self.options = options
        is_ahead = "overlapped_steps" in registry.admin.load_selection(worker).capabilities
        self._thread = _WorkThread() if run.async_steps and not is_ahead else None
        self._caller: _WorkThread | None = None
        self._late: Future[Any] | None = None
        self._loader = ThreadPoolExecutor(
            1, thread_name_prefix="dovetail-constraints", initializer=_step_back
        )
        self._bringer = ThreadPoolExecutor(
            1, thread_name_prefix="dovetail-kv-blocks", initializer=_step_back
        )
        self._shares_experts = run.rank.data_size > 1
        self._death: str | None = None
        self._callbacks: list[Callable[[str], None]] = []
        self._worker: Worker | None = None
        try:
            self._worker = self._call(lambda: make_worker(worker, run))
            self._call(lambda: engines.join(run))
            self._call(self.worker.load)
        except BaseException:
            self.shutdown()
            raise

    @property
    def worker(self) -> Worker:
        """Return the worker. Raises: EngineDead after shutdown."""
        if self._worker is None:
            raise EngineDead("the executor has been shut down.")
        return self._worker

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return the cached data of the model's attention layers, in layer order."""
        return self._call(self.worker.kv_layers)

    def free_bytes(self) -> int:
        """Return the bytes of device memory free for the KV cache."""
        return self._call(self.worker.free_bytes)

    def allocate(self, layout: KVLayout) -> None:
        """Create the KV cache and warm up. Raises: ConfigError when it cannot."""
        worker = self.worker
        self._call(lambda: worker.allocate(layout))

    def submit(self, plan: StepPlan) -> PendingStep:
        """Run the step, or queue it for the worker's thread."""
        self.check()
        worker = self.worker
        if self._thread is not None:
            return self._thread.submit(lambda: self._step(worker, plan))
        self._wait_late()
        return _PendingStep(self, plan.step_id, self._guarded(plan.step_id, worker.begin, plan))

    def sleep(self, level: int) -> None:
        """Let the worker release its memory. Raises: RequestError"""
        worker = self.worker
        self._call(lambda: worker.sleep(level))

    def wake_up(self, tags: Sequence[str]) -> None:
        """Let the worker take its memory again. Raises: RequestError, ConfigError"""
        worker = self.worker
        self._call(lambda: worker.wake_up(tags))

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Have the worker run a method; return its answer in a list. Raises: RequestError"""
        self.check()
        worker = self.worker

        def work() -> Any:
            return call_worker(worker, call, 0)

        if call.timeout_s is None:
            return [self._call(work)]
        self._wait_late()
        if self._thread is None and self._caller is None:
            self._caller = _WorkThread()
        thread = self._thread or self._caller
        assert thread is not None
        pending = thread.submit(work)
        try:
            return [pending.result(call.timeout_s)]
        except TimeoutError:
            self._late = pending
            raise too_late(call, [0]) from None

    def _wait_late(self) -> None:
        """Wait for a call whose caller did not: no two threads use the worker. Mutates: self"""
        late, self._late = self._late, None
        if late is not None:
            wait([late])

    def prepare(self, item: Preparation) -> Loaded:
        """Load a constraint on another thread, or bring blocks on one that only does that."""
        thread = self._bringer if isinstance(item, BlockLoad) else self._loader
        return thread.submit(self.worker.prepare, item)

    def check(self) -> None:
        """Raise EngineDead when a step has raised."""
        if self._death is not None:
            raise EngineDead(self._death)

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback for a step that raises."""
        self._callbacks.append(callback)

    def shutdown(self) -> None:
        """End the worker and its threads. May be called twice."""
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._bringer.shutdown(wait=False, cancel_futures=True)
        worker, self._worker = self._worker, None
        thread, self._thread = self._thread, None
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.stop(None)
        last = worker.shutdown if worker is not None else None
        if thread is not None:
            thread.stop(last)
        elif last is not None:
            last()
        if self._shares_experts:
            groups.leave()

    def _step(self, worker: Worker, plan: StepPlan) -> StepResult:
        """Run one step. Raises: EngineDead when the worker raised. Mutates: self"""
        self.check()
        return self._guarded(plan.step_id, worker.step, plan)

    def _guarded(self, step_id: int, function: Callable[..., T], *args: Any) -> T:
        """Do a part of a step. Raises: EngineDead when the worker raised. Mutates: self"""
        try:
            return function(*args)
        except Exception as error:
            self._death = f"step {step_id} failed: {described(error)}"
            for callback in self._callbacks:
                callback(self._death)
            raise EngineDead(self._death) from error

    def _call(self, function: Callable[[], T]) -> T:
        """Run in the thread that makes the torch calls, and wait."""
        self._wait_late()
        return function() if self._thread is None else self._thread.submit(function).result()


def _step_back() -> None:
    """Give steps priority over this thread. Only Linux has thread priorities."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class _PendingStep:
    """A step that the worker has begun; an exception in it ends the executor."""

    __slots__ = ("_executor", "_pending", "_step_id")

    def __init__(self, executor: UniExecutor, step_id: int, pending: PendingStep) -> None:
        self._executor, self._step_id, self._pending = executor, step_id, pending

    def result(self) -> StepResult:
        """Wait for the result. Raises: EngineDead"""
        self._executor.check()
        return self._executor._guarded(self._step_id, self._pending.result)


class _WorkThread:
    """One daemon thread that runs calls in the order they came."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dovetail-torch", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queue a call; return its future."""
        future: Future[T] = Future()
        self._calls.put(lambda: _settle(future, function))
        return future

    def stop(self, last: Callable[[], None] | None) -> None:
        """Run `last` after the queue, then end; waits a few seconds at most."""
        if last is not None:
            self._calls.put(last)
        self._calls.put(None)
        self._thread.join(STOP_WAIT_S)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    """Run a call and put its outcome into its future. Mutates: future"""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
