"""InStep: the executor of an engine that makes the same calls as the first rank's, in step.

This process's rank takes its orders from the first rank's executor, as any rank does. This executor
waits for the order that matches each call of its own engine, checks that they agree, and returns
the local rank's result: every rank samples the same tokens.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from itertools import count
from typing import Any, NoReturn, TypeVar

import msgspec

from dovetail.engine.affinity import keep_to
from dovetail.engine.faults import error_of
from dovetail.engine.worker_calls import answers_of, too_late
from dovetail.errors import DovetailError, EngineDead
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import Loaded, Preparation, WorkerCall
from dovetail.observability.supervise import note_failure
from dovetail_plugins.executors._launched_ranks import join_first_rank
from dovetail_plugins.ranks.connection import SocketConnection
from dovetail_plugins.ranks.executor import WatchedExecutor
from dovetail_plugins.ranks.messages import (
    Allocate,
    Answer,
    Called,
    CallMethod,
    Drawn,
    FreeBytes,
    GetFreeBytes,
    GetKVLayers,
    ItemPrepared,
    KVLayers,
    Load,
    Order,
    RunStep,
    Sleep,
    Start,
    WakeUp,
)
from dovetail_plugins.ranks.messages import Aside as AsideMessage
from dovetail_plugins.ranks.rank_process import RankServer
from dovetail_plugins.ranks.wire import Wire

OrderType = TypeVar("OrderType", bound=Order)
LEAVE_WAIT_S = 30.0
"""How long an engine that is shut down stays for the first rank's, whose last step may need it."""
LOOK_PERIOD_S = 0.2
STUCK_WAIT_S = 2.0
"""How long the local rank may continue a step once the first rank's engine is gone."""
SAME_CALLS = (
    "every rank must be started with the same flags and make the same calls in the same order"
)


class _Taken:
    """An order taken by the local rank, and its outcome: an Answer or a StepResult."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.outcome: Future[Any] = Future()


class _TellingServer(RankServer):
    """A rank that reports its work to the executor of its own process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken: queue.SimpleQueue[_Taken | None] = queue.SimpleQueue()
        self.prepared: queue.SimpleQueue[ItemPrepared | None] = queue.SimpleQueue()
        self.left_s: float | None = None
        self.end_report = ""
        self._current: _Taken | None = None
        self._steps: deque[_Taken] = deque()

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Drawn):  # the rank's own engine waits for it
            super()._carry_out(order)
            self._steps.popleft().outcome.set_result(order.result)
            return
        taken = _Taken(order)
        if isinstance(order, RunStep):
            self._steps.append(taken)
        else:
            self._current = taken
        self.taken.put(taken)
        super()._carry_out(order)

    def _answer(self, order: Order) -> Answer:
        assert self._current is not None, "an order is carried out once it has been taken"
        try:
            answer = super()._answer(order)
        except DovetailError as error:
            self._current.outcome.set_exception(error)
            raise
        self._current.outcome.set_result(answer)
        return answer

    def _send_result(self, result: StepResult) -> None:
        super()._send_result(result)
        if self._task.run.rank.is_last_stage:
            self._steps.popleft().outcome.set_result(result)

    def _send_aside(self, message: AsideMessage) -> None:
        super()._send_aside(message)
        if isinstance(message, ItemPrepared):
            self.prepared.put(message)

    def say(self, reason: str) -> None:
        """Report to the executors here and at the first rank why this rank ends."""
        self.end_report = reason
        super().say(reason)

    def _on_executor_gone(self) -> None:
        self.left_s = time.monotonic()


class _InStepPending:
    """A pending step."""

    __slots__ = ("_executor", "_taken")

    def __init__(self, executor: InStep, taken: _Taken) -> None:
        self._executor, self._taken = executor, taken

    def result(self) -> StepResult:
        """Wait for the result. Raises: EngineDead"""
        result: StepResult = self._executor.wait_for(self._taken)
        return result


class InStep(WatchedExecutor):
    """Follows the first rank's executor. One thread here is the rank."""

    def __init__(self, options: Any, run: RunSpec, worker: Selection) -> None:
        super().__init__(options)
        self._number = run.rank.rank
        self._encoder = msgspec.msgpack.Encoder()
        self._allocated: _Taken | None = None
        self._call_numbers = count()
        task, self._connections = join_first_rank(run, worker, has_engine=True)
        orders, aside = (Wire(SocketConnection(one)) for one in self._connections)
        self._server = _TellingServer(task, orders, aside)
        self._thread = threading.Thread(
            target=self._serve, args=(task.run.processors,), name="dovetail-rank", daemon=True
        )
        self._thread.start()
        atexit.register(self.shutdown)
        try:
            self._do(Start)
            self._do(Load)
        except BaseException:
            self._close(0.0)
            raise

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return the cached data of the model's attention layers."""
        answer: KVLayers = self._do(GetKVLayers)
        return answer.layers

    def free_bytes(self) -> int:
        """Return the bytes that the KV cache may take on this rank."""
        answer: FreeBytes = self._do(GetFreeBytes)
        return answer.num_bytes

    def agreed(self, layout: KVLayout) -> KVLayout:
        """Return the layout that the first rank's engine has chosen."""
        self._allocated = self._take(Allocate)
        order = self._allocated.order
        assert isinstance(order, Allocate), "the order was looked at"
        return order.layout

    def allocate(self, layout: KVLayout) -> None:
        """Wait until the KV cache is there. Raises: ConfigError when it cannot be."""
        assert self._allocated is not None, "agreed() comes first"
        self.wait_for(self._allocated)

    def sleep(self, level: int) -> None:
        """Give memory back. Raises: RequestError"""
        self._do(Sleep, Sleep(level))

    def wake_up(self, tags: Sequence[str]) -> None:
        """Take memory again. Raises: RequestError, ConfigError"""
        self._do(WakeUp, WakeUp(tuple(tags)))

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Wait until the first rank's engine makes the same call; return the local result.

        Raises: RequestError
        """
        taken = self._take(CallMethod, CallMethod(next(self._call_numbers), call))
        if call.timeout_s is not None:
            wait([taken.outcome], call.timeout_s)
            if not taken.outcome.done():
                raise too_late(call, [self._number])
        called: Called = self.wait_for(taken)
        return answers_of(call, {0: called}, 1)

    def submit(self, plan: StepPlan) -> _InStepPending:
        """Wait until the first rank's engine has planned the same step."""
        return _InStepPending(self, self._take(RunStep, RunStep(plan)))

    def prepare(self, item: Preparation) -> Loaded:
        """Wait until the constraint is loaded here: all engines must queue its request together."""
        done: Loaded = Future()
        message = self._next(self._server.prepared)
        if message.fault is None:
            done.set_result(message.facts)
        else:
            done.set_exception(error_of(message.fault))
        return done

    def shutdown(self) -> None:
        """Leave once the first rank's engine has ended. May be called twice."""
        self._close(0.0 if self._death else LEAVE_WAIT_S)

    def wait_for(self, taken: _Taken) -> Any:
        """Return the local rank's outcome of an order. Raises: EngineDead, what it raised"""
        while not taken.outcome.done():
            wait([taken.outcome], LOOK_PERIOD_S)
            if not taken.outcome.done():
                self._look()
        return taken.outcome.result()

    def _do(self, order_type: type[OrderType], own: Order | None = None) -> Any:
        """Return the answer to the next order, which must be of this type (see _take)."""
        return self.wait_for(self._take(order_type, own))

    def _take(self, order_type: type[OrderType], own: Order | None = None) -> _Taken:
        """Return the next order: of this type, and just like `own`. Raises: EngineDead"""
        taken = self._next(self._server.taken)
        if not isinstance(taken.order, order_type):
            self._differ(f"{_word(taken.order)}, and this one {order_type.__name__.lower()}")
        if own is not None and self._encoder.encode(own) != self._encoder.encode(taken.order):
            self._differ(f"another {_word(taken.order)} than this one")
        return taken

    def _next(self, source: queue.SimpleQueue[Any]) -> Any:
        """Return the next item. Raises: EngineDead when no more can come"""
        while True:
            try:
                found = source.get(timeout=LOOK_PERIOD_S)
            except queue.Empty:
                self._look()
                continue
            if found is None:
                source.put(None)
                raise EngineDead(self._death or "the executor has been shut down.")
            return found

    def _look(self) -> None:
        """Raise EngineDead when the local rank can do no more work."""
        left_s = self._server.left_s
        if left_s is not None and time.monotonic() - left_s > STUCK_WAIT_S:
            self._die("the engine of rank 0 is gone.")  # the rank waits for others in a step
            raise EngineDead(str(self._death))
        if self._death is not None and not self._thread.is_alive():
            raise EngineDead(self._death)

    def _differ(self, what: str) -> NoReturn:
        """End this engine, and by that the first rank's, because they do not do the same."""
        reason = (
            f"rank {self._number} is out of step: the engine of rank 0 did {what}; {SAME_CALLS}."
        )
        self._server.say(reason)
        self._die(reason)
        self._close(0.0)
        raise EngineDead(reason)

    def _serve(self, processors: Sequence[int]) -> None:
        """Be the rank, until the first rank's engine ends."""
        try:
            keep_to(processors)
            self._server.serve()
        except Exception as error:
            note_failure("dovetail-rank", error)
        finally:
            if not self._is_over:
                self._die(self._server.end_report or "the engine of rank 0 has ended.")
            self._server.taken.put(None)
            self._server.prepared.put(None)

    def _die(self, reason: str) -> None:
        if self._death is not None:
            return
        self._death = reason
        self._report_death(reason)

    def _close(self, wait_s: float) -> None:
        """Leave, after the first rank's engine has ended or `wait_s`. Mutates: self"""
        self._is_over = True
        atexit.unregister(self.shutdown)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._server.leave()
            self._thread.join(1.0)
        for connection in self._connections:
            connection.close()


def _word(order: Order) -> str:
    return type(order).__name__.lower()
