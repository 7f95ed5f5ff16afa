"""RanksExecutor: shared base of executors with several ranks: broadcast, first fault, death.

A subclass starts the ranks and gives the connections to them (`RankLinks`). Every rank gets every
order; the first one sends a step's result. The end of a rank ends the executor immediately.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

import msgspec

from dovetail.engine.faults import error_of
from dovetail.engine.worker_calls import answers_of
from dovetail.errors import EngineDead
from dovetail.interfaces.data.adapter_spec import AdapterFacts
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import Executor, Loaded, Preparation, WorkerCall
from dovetail_plugins.ranks.messages import (
    Allocate,
    Answer,
    Called,
    CallMethod,
    Drawn,
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
    RunStep,
    Sleep,
    Start,
    Stepped,
    WakeUp,
)
from dovetail_plugins.ranks.stage_caches import StageCaches

logger = logging.getLogger(__name__)

AnswerType = TypeVar("AnswerType", OrderDone, KVLayers, FreeBytes)
FAULT_WAIT_S = 5.0
"""How long ranks may take to answer an order once one of them has refused it."""
SILENCE_S = 60.0
"""How long ranks may be silent before it is logged."""
DEATH_WAIT_S = 5.0
"""How long a broken connection waits for the word on which rank ended, and why."""
GRACE_S = 3.0
"""How long ranks have to end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A rank that has ended: `when_s` on the monotonic clock. `is_silent`: without a report."""

    number: int
    when_s: float
    reason: str
    is_silent: bool


class RankObserver(Protocol):
    """Events reported by links, from their own thread."""

    def on_prepared(self, number: int, message: ItemPrepared) -> None:
        """A rank has loaded a constraint, or cannot."""

    def on_losses(self, losses: Sequence[Loss]) -> None:
        """Ranks have ended, unasked."""


class RankLinks(Protocol):
    """The connections to the ranks. One thread sends and receives."""

    def send(self, payload: bytes) -> None:
        """Send an order to every rank. Raises: OSError, EOFError when one is gone"""

    def send_to(self, numbers: Collection[int], payload: bytes) -> None:
        """Send an order to some ranks. Raises: OSError, EOFError when one is gone"""

    def receive(self, number: int) -> bytes:
        """Wait for one rank's next answer. Raises: OSError, EOFError when a rank is gone"""

    def receive_any(self, numbers: Collection[int], deadline_s: float | None) -> int | None:
        """Wait until one of these ranks has answered; return its number, None at the deadline.

        Raises: OSError, EOFError when a rank is gone
        """

    def tell(self, payload: bytes) -> None:
        """Send something aside to every rank. Raises: OSError when one is gone"""

    def watch(self, observer: RankObserver) -> None:
        """Report from now on messages on the side connection, and which ranks end."""

    def shut_down(self) -> None:
        """Make waiting calls end with an error; any thread may call this."""

    def end(self, grace_s: float) -> None:
        """End all ranks, by force after `grace_s`. May be called twice."""


class _PendingStep:
    """A pending step; results are read in the order of the steps."""

    __slots__ = ("_executor", "_result", "step_id")

    def __init__(self, executor: RanksExecutor, step_id: int) -> None:
        self._executor = executor
        self._result: StepResult | None = None
        self.step_id = step_id

    def result(self) -> StepResult:
        """Wait for the result. Raises: EngineDead"""
        while self._result is None:
            self._executor.read_oldest()
        return self._result

    def settle(self, result: StepResult) -> None:
        """Keep the result. Mutates: self"""
        assert result.step_id == self.step_id, "a rank answered another step"
        self._result = result


class _Preparing:
    """A constraint that ranks are loading. `left` are those that have not answered."""

    def __init__(self, num_ranks: int) -> None:
        self.done: Loaded = Future()
        self.left = set(range(num_ranks))
        self.facts: AdapterFacts | None = None


class WatchedExecutor(Executor):
    """An executor whose ranks may end on their own. A subclass sets `_death` to the reason, once,
    and `_is_over` at shutdown."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self._death: str | None = None
        self._is_over = False
        self._callbacks: list[Callable[[str], None]] = []

    def check(self) -> None:
        """Raise EngineDead when a rank is gone, or after shutdown."""
        if self._death is not None:
            raise EngineDead(self._death)
        if self._is_over:
            raise EngineDead("the executor has been shut down.")

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback for the unexpected end of a rank; it is called from any thread."""
        self._callbacks.append(callback)
        if self._death is not None:
            callback(self._death)

    def _report_death(self, reason: str) -> None:
        """Run the death callbacks."""
        for callback in self._callbacks:
            callback(reason)


class RanksExecutor(WatchedExecutor):
    """Drives `run.rank.world_size` ranks. A rank that ends ends all."""

    capabilities = frozenset({"async_steps", "collective_rpc", "several_ranks", "sleep", "stages"})

    def __init__(self, options: Any, run: RunSpec, worker: Selection) -> None:
        super().__init__(options)
        self._numbers = range(run.rank.world_size)
        self._teller = run.rank.first_of_last_stage
        self._stages = StageCaches(run.rank.num_stages, run.rank.tensor_size)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
        self._steps: deque[_PendingStep] = deque()
        self._preparing: dict[int, _Preparing] = {}
        self._constraint_numbers, self._call_numbers = count(), count()
        self._lock = threading.Lock()
        self._died = threading.Event()
        self._links = self._start_ranks(run, worker)
        try:
            self._links.watch(self)
            self._ask(Start(), OrderDone)
            self._load(run.load_options.get("workers"))
        except BaseException:
            self.shutdown()
            raise

    @abstractmethod
    def _start_ranks(self, run: RunSpec, worker: Selection) -> RankLinks:
        """Start the ranks of a run (see ranks.layout); they wait for orders. Raises: ConfigError"""

    def _load(self, at_once: int | None) -> None:
        """Let every rank load, `at_once` of them at the same time (None: all)."""
        size = at_once or len(self._numbers)
        for first in self._numbers[::size]:
            self._ask(Load(), OrderDone, self._numbers[first : first + size])

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return the cached data of the model's attention layers: the same on every rank of a
        stage, and as much as the stage with the most."""
        answers = self._ask(GetKVLayers(), KVLayers)
        return self._stages.common_layers([answer.layers for answer in answers])

    def free_bytes(self) -> int:
        """Return the bytes that the KV cache may take on the fullest rank."""
        return min(answer.num_bytes for answer in self._ask(GetFreeBytes(), FreeBytes))

    def allocate(self, layout: KVLayout) -> None:
        """Create the KV cache on every rank and warm up. Raises: ConfigError when it cannot."""
        layouts, size = self._stages.own_layouts(layout), self._stages.tensor_size
        orders = [Allocate(layouts[number // size % len(layouts)]) for number in self._numbers]
        self._ask(orders, OrderDone)

    def sleep(self, level: int) -> None:
        """Let every rank give its memory back. Raises: RequestError"""
        self._ask(Sleep(level), OrderDone)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Let every rank take its memory again. Raises: RequestError, ConfigError"""
        self._ask(WakeUp(tuple(tags)), OrderDone)

    def submit(self, plan: StepPlan) -> _PendingStep:
        """Send a step to every rank; returns before it has run."""
        self.check()
        try:
            self._links.send(self._encoder.encode(RunStep(plan)))
        except (OSError, EOFError) as error:
            raise self._dead() from error
        step = _PendingStep(self, plan.step_id)
        self._steps.append(step)
        return step

    def read_oldest(self) -> None:
        """Read the result of the oldest pending step. Raises: EngineDead"""
        self.check()
        assert self._steps, "no step is under way"
        try:
            while isinstance(answer := self._receive(self._teller), Called):
                continue  # too late: its caller has been answered
        except (OSError, EOFError) as error:
            raise self._dead() from error
        assert isinstance(answer, Stepped), "a rank answered a step with something else"
        self._steps.popleft().settle(answer.result)
        self._pass_on(answer.result)

    def _pass_on(self, result: StepResult) -> None:
        """Send the sampled tokens to the ranks of the other stages. Raises: EngineDead"""
        if not self._teller:
            return
        try:
            self._links.send_to(range(self._teller), self._encoder.encode(Drawn(result)))
        except (OSError, EOFError) as error:
            raise self._dead() from error

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Have every rank's worker run a method; return their answers. Raises: RequestError"""
        self.check()
        while self._steps:
            self.read_oldest()
        number = next(self._call_numbers)
        try:
            self._links.send(self._encoder.encode(CallMethod(number, call)))
            called = self._gather_called(number, call.timeout_s)
        except (OSError, EOFError) as error:
            raise self._dead() from error
        return answers_of(call, called, len(self._numbers))

    def _gather_called(self, number: int, timeout_s: float | None) -> dict[int, Called]:
        """Return what ranks have answered to a call in time: all, unless one has failed or the time
        is over. Answers to earlier calls, which came too late, are dropped."""
        called: dict[int, Called] = {}
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        left = set(self._numbers)
        while left and (rank := self._links.receive_any(left, deadline_s)) is not None:
            answer = self._receive(rank)
            if not isinstance(answer, Called) or answer.number != number:
                continue
            called[rank] = answer
            left.discard(rank)
            if answer.fault is not None:
                end_s = time.monotonic() + FAULT_WAIT_S
                deadline_s = end_s if deadline_s is None else min(deadline_s, end_s)
        return called

    def _receive(self, number: int) -> Answer:
        """Return a rank's next answer. Raises: OSError, EOFError when a rank is gone"""
        return self._decoder.decode(self._links.receive(number))

    def prepare(self, item: Preparation) -> Loaded:
        """Load a constraint on every rank, during the steps. The future raises RequestError."""
        self.check()
        preparing = _Preparing(len(self._numbers))
        number = next(self._constraint_numbers)
        with self._lock:
            self._preparing[number] = preparing
        try:
            self._links.tell(self._encoder.encode(Prepare(number, item)))
        except OSError as error:
            raise self._dead() from error
        return preparing.done

    def on_prepared(self, number: int, message: ItemPrepared) -> None:
        """Note a rank's answer; the first refusal counts. Called by the links' thread."""
        with self._lock:
            preparing = self._preparing.get(message.number)
            if preparing is None:
                return
            preparing.left.discard(number)
            if message.facts != AdapterFacts():  # stages see the tables that they have
                preparing.facts = message.facts
            if message.fault is None and preparing.left:
                return
            del self._preparing[message.number]
        if message.fault is None:
            preparing.done.set_result(preparing.facts)
        else:
            preparing.done.set_exception(error_of(message.fault))

    def on_losses(self, losses: Sequence[Loss]) -> None:
        """End the executor because of the rank that ended first. Called by the links' thread."""
        self._die(first_loss(losses).reason)

    def shutdown(self) -> None:
        """End all ranks. May be called twice."""
        self._is_over = True
        self._links.end(0.0 if self._death else GRACE_S)
        self._fail_preparing("the executor has been shut down.")

    def _ask(
        self,
        order: Order | Sequence[Order],
        answer_type: type[AnswerType],
        numbers: Collection[int] | None = None,
    ) -> list[AnswerType]:
        """Return the answers of all ranks, or of these, to one order or to each rank's own.

        Raises: the error of the first rank that refuses
        """
        self.check()
        while self._steps:
            self.read_oldest()
        ranks = self._numbers if numbers is None else numbers
        orders = order if isinstance(order, Sequence) else [order] * len(ranks)
        try:
            for number, one in zip(ranks, orders, strict=True):
                self._links.send_to((number,), self._encoder.encode(one))
            answers = self._gather(ranks)
        except (OSError, EOFError) as error:
            raise self._dead() from error
        found = [answers[number] for number in sorted(answers)]
        return [answer for answer in found if isinstance(answer, answer_type)]

    def _gather(self, numbers: Collection[int]) -> dict[int, Answer]:
        """Return each rank's answer. Raises: the first refusal, when the others have answered too
        or have had time to"""
        answers: dict[int, Answer] = {}
        refusal: Failed | None = None
        deadline_s: float | None = None
        left = set(numbers)
        while left:
            number = self._next_of(left, deadline_s)
            if number is None:  # they wait for the one that refused: nothing can follow this
                self._die(f"ranks {sorted(left)} did not answer an order that another refused.")
                break
            answer = self._receive(number)
            if isinstance(answer, Called):
                continue  # too late: its caller has been answered
            left.discard(number)
            answers[number] = answer
            if isinstance(answer, Failed) and refusal is None:
                refusal, deadline_s = answer, time.monotonic() + FAULT_WAIT_S
        if refusal is not None:
            raise error_of(refusal.fault)
        return answers

    def _next_of(self, left: Collection[int], deadline_s: float | None) -> int | None:
        """Return the rank that answers next, None at the deadline. Without one it waits for as long
        as it takes, to load weights for example; silent ranks are logged."""
        if deadline_s is not None:
            return self._links.receive_any(left, deadline_s)
        begun_s = time.monotonic()
        while (number := self._links.receive_any(left, time.monotonic() + SILENCE_S)) is None:
            waited_s = time.monotonic() - begun_s
            message = "no answer for %.0f s from ranks %s: they are busy, or hang"
            logger.warning(message, waited_s, sorted(left))
        return number

    def _dead(self) -> EngineDead:
        """Return why a connection broke, once that is known."""
        if not self._is_over:
            self._died.wait(DEATH_WAIT_S)
        return EngineDead(self._death or "the connection to the ranks was closed.")

    def _die(self, reason: str) -> None:
        """Record the death once and run the callbacks. Mutates: self"""
        with self._lock:
            if self._death is not None or self._is_over:
                return
            self._death = reason
        self._fail_preparing(reason)
        self._report_death(reason)
        self._died.set()
        self._links.shut_down()

    def _fail_preparing(self, reason: str) -> None:
        with self._lock:
            preparing, self._preparing = self._preparing, {}
        for one in preparing.values():
            one.done.set_exception(EngineDead(reason))


def first_loss(losses: Sequence[Loss]) -> Loss:
    """Return the rank that ended first: a silent one, because it made those fail that waited for
    it; otherwise the one that reported first."""
    return min(losses, key=lambda loss: (not loss.is_silent, loss.when_s))
