"""A rank's process: carries out an executor's orders with one worker.

Started by `dovetail.processes.process.spawn`; ends when the executor closes the connection, or with
its parent. A step that raises ends it: then the state of the step's rows is unknown.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

import msgspec

from dovetail import registry
from dovetail.engine.affinity import keep_to
from dovetail.engine.faults import fault_of
from dovetail.engine.worker_calls import call_worker, make_worker
from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StepResult
from dovetail.interfaces.executor import BlockLoad, PendingStep, WorkerCall, what_of
from dovetail.interfaces.worker import Worker
from dovetail.observability.supervise import supervised_thread
from dovetail.processes import process
from dovetail.registry.blame import described
from dovetail_kernels.byte_pipe import Pipes
from dovetail_plugins.ranks import messages
from dovetail_plugins.ranks.connection import Connection, SharedConnection, SocketConnection
from dovetail_plugins.ranks.messages import (
    Allocate,
    Answer,
    Called,
    CallMethod,
    Drawn,
    EndReport,
    Failed,
    FreeBytes,
    GetFreeBytes,
    GetKVLayers,
    ItemPrepared,
    KVLayers,
    Load,
    Order,
    OrderDone,
    Prepare,
    RankBoot,
    RankTask,
    RunStep,
    Sleep,
    Start,
    Stepped,
    WakeUp,
)
from dovetail_plugins.ranks.wire import WakefulWire, Wire

logger = logging.getLogger(__name__)

SWITCH_S = 5e-4
"""Maximum time for which a thread next to the steps (loading constraints) holds the interpreter."""
NEXT_STEP_WAIT_S = 1e-3
"""With steps ahead: how long the next step is waited for before the last result is read."""
AWAKE_S = 5e-4
"""How long an idle rank is awake for the next order: an engine plans a step in less."""


def orders_wire(connection: Connection, run: RunSpec) -> Wire:
    """Return a rank's end of the connection by which orders come. Who wants no idle thread to wait
    awake (`--thread-spin-us 0`) gets none."""
    return WakefulWire(connection, AWAKE_S if run.thread_spin_us else 0.0)


def own_connection(boot: RankBoot) -> Connection:
    """Return the connection by which this process gets its orders."""
    descriptor = boot.orders.descriptor
    if not boot.orders.is_shared:
        connected = socket.socket(fileno=descriptor)
        connected.set_inheritable(False)
        return SocketConnection(connected)
    rank = boot.run.rank
    try:
        return SharedConnection(Pipes(descriptor, rank.world_size).end_of(rank.rank))
    finally:
        os.close(descriptor)


def main() -> int:
    """Serve as the rank of the boot message, then end the process."""
    boot = process.read_boot(RankBoot)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine says when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if boot.log is not None:
        boot.log.apply()
    sys.setswitchinterval(SWITCH_S)
    keep_to(boot.run.processors)
    aside = Wire(SocketConnection(process.open_channel()))
    status = RankServer(boot, orders_wire(own_connection(boot), boot.run), aside).serve()
    logging.shutdown()
    os._exit(status)  # no work is left, and shutting down an interpreter with torch is slow


class RankServer:
    """One worker, driven by the orders that come over a wire."""

    def __init__(self, task: RankTask, orders: Wire, aside: Wire) -> None:
        self._task = task
        self._number = task.run.rank.rank
        self._tells_results = self._number == task.run.rank.first_of_last_stage
        self._orders = orders
        self._aside = aside
        self._aside_lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Order)
        self._worker: Worker | None = None
        self._most_begun = 0
        self._begun: deque[PendingStep] = deque()

    @property
    def worker(self) -> Worker:
        """Return the worker; the order to start comes first."""
        assert self._worker is not None, "there is no worker before the order to start"
        return self._worker

    def serve(self) -> int:
        """Carry out orders until there are no more; return the exit status."""
        supervised_thread("aside", self._serve_aside).start()
        try:
            while (order := self._next_order()) is not None:
                self._carry_out(order)
        except Exception as error:
            logger.exception("rank %d ends because of a fault", self._number)
            self._report_end(error)
            return 1
        finally:
            self._shut_down()
        return 0

    def _next_order(self) -> Order | None:
        """Return the next order, None at the end. Results of steps ahead are sent meanwhile."""
        while self._begun and not self._has_order():
            self._send_oldest()
        try:
            return self._decoder.decode(self._orders.receive())
        except EOFError:
            return None

    def _has_order(self) -> bool:
        """Return whether an order comes within a moment."""
        if self._orders.has_message():
            return True
        try:
            self._orders.read_within(NEXT_STEP_WAIT_S)
        except EOFError:
            return True  # `receive` will report the end
        return self._orders.has_message()

    def _carry_out(self, order: Order) -> None:
        """Carry out an order and answer. Raises: whatever a step raises"""
        if isinstance(order, RunStep):
            self._begun.append(self.worker.begin(order.plan))
            while len(self._begun) > self._most_begun:
                self._send_oldest()
            return
        while self._begun:
            self._send_oldest()
        if isinstance(order, Drawn):
            self.worker.learn(order.result)
            return
        answer: Answer
        try:
            answer = self._answer(order)
        except DovetailError as error:
            answer = Failed(fault_of(error))
        self._send(answer)

    def _send_oldest(self) -> None:
        """Wait for the oldest step; the first rank of the last stage sends its result."""
        self._send_result(self._begun.popleft().result())

    def _send_result(self, result: StepResult) -> None:
        if self._tells_results:
            self._send(Stepped(result))

    def _send(self, answer: Answer) -> None:
        self._orders.send(self._encoder.encode(answer))

    def _answer(self, order: Order) -> Answer:
        """Return the answer to any order but a step. Raises: DovetailError for a refusal"""
        match order:
            case Start():
                self._start()
            case Load():
                self.worker.load()
            case GetKVLayers():
                return KVLayers(tuple(self.worker.kv_layers()))
            case GetFreeBytes():
                return FreeBytes(self.worker.free_bytes())
            case Allocate(layout):
                self.worker.allocate(layout)
            case Sleep(level):
                self.worker.sleep(level)
            case WakeUp(tags):
                self.worker.wake_up(tags)
            case CallMethod(number, call):
                return self._call_method(number, call)
            case RunStep() | Drawn():
                raise AssertionError("steps are carried out elsewhere")
            case _:
                assert_never(order)
        return OrderDone()

    def _call_method(self, number: int, call: WorkerCall) -> Called:
        """Return the result of a call; a fault of the method ends nothing else."""
        try:
            return Called(number, call_worker(self.worker, call, self._number))
        except RequestError as error:
            return Called(number, fault=fault_of(error))

    def _start(self) -> None:
        """Build the worker, which takes its device, and join the other ranks."""
        task, run = self._task, self._task.run
        plugin = registry.admin.load_selection(task.worker)
        is_ahead = run.async_steps and "overlapped_steps" in plugin.capabilities
        self._most_begun = 1 if is_ahead else 0
        self._worker = make_worker(task.worker, run)
        if run.rank.tensor_size > 1 or run.rank.num_stages > 1:
            from dovetail.parallel.groups import join
            from dovetail.parallel.halves import alternates

            assert run.communicator is not None, "several ranks need a communicator"
            device = run.device
            if device != "cpu":
                device = f"{device}:{run.rank.local_rank}"
            join(
                run.rank,
                communicator=run.communicator,
                address=task.address,
                device=device,
                is_open=task.is_open,
                hands_over=alternates(run),
            )
        if run.rank.data_size > 1:
            from dovetail.parallel import engines

            engines.join(run)

    def _serve_aside(self) -> None:
        """Load constraints, one after the other, and bring blocks, in the background of steps."""
        decoder = msgspec.msgpack.Decoder(Prepare)
        loader = ThreadPoolExecutor(1, "constraints", initializer=_step_back)
        bringer = ThreadPoolExecutor(1, "kv-blocks", initializer=_step_back)
        try:
            while True:
                order = decoder.decode(self._aside.receive())
                thread = bringer if isinstance(order.item, BlockLoad) else loader
                thread.submit(self._prepare, order)
        except (EOFError, OSError):
            loader.shutdown(wait=False, cancel_futures=True)
            bringer.shutdown(wait=False, cancel_futures=True)
            self._on_executor_gone()

    def _on_executor_gone(self) -> None:
        """Called from another thread when the executor is gone. A process that `spawn` started ends
        by its parent pipe."""

    def _prepare(self, order: Prepare) -> None:
        try:
            answer = ItemPrepared(order.number, facts=self.worker.prepare(order.item))
        except DovetailError as error:
            answer = ItemPrepared(order.number, fault=fault_of(error))
        except Exception as error:
            logger.exception("%s could not be loaded", what_of(order.item))
            what = f"{what_of(order.item)} could not be loaded: {described(error)}"
            answer = ItemPrepared(order.number, fault=fault_of(RequestError(what, status=500)))
        self._send_aside(answer)

    def _send_aside(self, message: messages.Aside) -> None:
        with self._aside_lock:
            self._aside.send(self._encoder.encode(message))

    def _report_end(self, error: Exception) -> None:
        reason = error.what if isinstance(error, DovetailError) else described(error)
        self.say(f"rank {self._number} failed: {reason}")

    def say(self, reason: str) -> None:
        """Report to the executor why this rank ends. Any thread may call this."""
        try:
            self._send_aside(EndReport(time.monotonic(), reason))
        except OSError:
            logger.debug("nobody hears this rank's report of its end")

    def leave(self) -> None:
        """Make `serve` end after its current order. Any thread may call this."""
        self._orders.shut_down()
        self._aside.shut_down()

    def _shut_down(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
        parallel = sys.modules.get("dovetail.parallel.groups")
        if parallel is not None:
            leave: Callable[[], None] = parallel.leave
            leave()


def _step_back() -> None:
    """Give steps priority over this thread. Only Linux has thread priorities."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
