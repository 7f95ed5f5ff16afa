"""HalfBatches: two half batches of a step; one computes while the other exchanges tensors.

Each half runs in its own thread, only one at a time. A half that has begun an exchange between
ranks hands over to the other half. When control comes back, it waits for its exchange. So in every
layer the first half is ahead of the second by less than one exchange; what it writes there, the
second may read. Who computes depends only on the calls that the halves make, never on time: all
ranks make the same calls in the same order.

Knows no model and no rows: a half is a function.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from dovetail import registry
from dovetail.interfaces.all2all import All2All, Compute
from dovetail.interfaces.communicator import OVERLAPS, Communicator
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class OtherHalfFailed(Exception):
    """Raised in a half at its next exchange after the other half has failed."""


class Baton:
    """Decides which half of a step computes. Only that half reads and writes its fields.

    `begun` counts the calls that each half has begun to each group in which halves take turns.
    """

    def __init__(self) -> None:
        self._turns = (threading.Lock(), threading.Lock())
        for turn in self._turns:
            turn.acquire()
        self._is_running = [True, True]
        self._has_failed = False
        self.begun: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def wait_for_start(self) -> None:
        """Wait until the second half may begin. Raises: OtherHalfFailed"""
        self._wait(1)

    def hand_over(self, half: int) -> None:
        """Let the other half compute until it hands over; returns immediately if it has ended.
        Raises: OtherHalfFailed"""
        other = 1 - half
        if self._is_running[other]:
            self._turns[other].release()
            self._wait(half)
        elif self._has_failed:
            raise OtherHalfFailed

    def _wait(self, half: int) -> None:
        self._turns[half].acquire()
        if self._has_failed:
            raise OtherHalfFailed

    def end(self, half: int, *, has_failed: bool) -> None:
        """End this half and let the other one compute. Mutates: self"""
        self._is_running[half] = False
        self._has_failed |= has_failed
        if self._is_running[1 - half]:
            self._turns[1 - half].release()

    def take_turn(self, half: int, group: int) -> None:
        """Wait until the other half has begun as many calls to the group; the first half calls
        first. Raises: OtherHalfFailed. Mutates: begun"""
        own, others = self.begun[half], self.begun[1 - half]
        while self._is_running[1 - half] and others[group] < own[group] + half:
            self.hand_over(half)
        own[group] += 1


class _Slot(threading.local):
    baton: Baton | None = None
    half: int = 0


_slot = _Slot()


@contextmanager
def _as_half(baton: Baton, half: int) -> Iterator[None]:
    """Run the with block as this half: its exchanges hand over. Ends the half on exit."""
    _slot.baton, _slot.half = baton, half
    has_failed = True
    try:
        if half:
            baton.wait_for_start()
        yield
        has_failed = False
    finally:
        _slot.baton = None
        baton.end(half, has_failed=has_failed)


class HalfBatches:
    """Runs the halves of steps. With `alternates` False they run one after the other, for
    communicators that cannot overlap exchanges with computation."""

    def __init__(self, *, alternates: bool) -> None:
        self.alternates = alternates
        self._pool = ThreadPoolExecutor(1, "dovetail-second-half") if alternates else None

    def run(self, first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
        """Return the results of both halves; the first one runs in this thread. Raises: the error
        of the half that failed; the other one ends at its next exchange"""
        if self._pool is None:
            return first(), second()
        baton = Baton()
        later = self._pool.submit(_run_half, baton, 1, second)
        try:
            one = _run_half(baton, 0, first)
        except OtherHalfFailed:
            later.result()
            raise
        except BaseException:
            later.exception()
            raise
        return one, later.result()


def _run_half(baton: Baton, half: int, function: Callable[[], T]) -> T:
    with _as_half(baton, half):
        return function()


class HandingOver(Communicator):
    """A communicator that hands over to the other half of a step at each call. Outside of halves it
    is the inner communicator. `takes_turns`: the group contains ranks of other engines, whose
    halves may make other calls in between; so the halves call it in turns."""

    info = Info(summary="a communicator of a step in two halves")

    def __init__(self, inner: Communicator, *, takes_turns: bool = False) -> None:
        self._inner, self._takes_turns = inner, takes_turns
        self.rank, self.size, self.device = inner.rank, inner.size, inner.device

    def _call(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        baton, half = _slot.baton, _slot.half
        if baton is None:
            return call()
        if self._takes_turns:
            baton.take_turn(half, id(self))
        finish = self._inner.begin(call)
        try:
            baton.hand_over(half)
        except OtherHalfFailed:
            finish()  # the other ranks have begun this call too
            raise
        return finish()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over all ranks. Mutates: x"""
        return self._call(lambda: self._inner.all_reduce(x))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the x of all ranks in rank order. Shapes: x [..] -> [size, ..]"""
        return self._call(lambda: self._inner.all_gather(x))

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return x of rank `source` (broadcast). Mutates: x"""
        return self._call(lambda: self._inner.broadcast(x, source))

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum over all ranks. Shapes: x [size * N, ..] -> [N, ..]"""
        return self._call(lambda: self._inner.reduce_scatter(x))

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each rank sent to this one. Shapes: x [size * N, ..] -> [size * N, ..]"""
        return self._call(lambda: self._inner.all_to_all(x))

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks sent to this one.

        Shapes: x [rows sent, ..] -> [received, ..]
        """
        return self._call(lambda: self._inner.all_to_all_rows(x, counts))

    def send(self, x: torch.Tensor) -> None:
        """Send x to the other rank of two. Only pipeline stages do, outside of the halves of a
        step."""
        self._inner.send(x)

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return x as sent by the other rank of two. Mutates: x"""
        return self._inner.receive(x)

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        self._inner.barrier()

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._inner.close()


class HalvesAll2All(All2All):
    """One exchange per half, because each half has its own number of tokens."""

    info = Info(summary="the exchanges of a step in two halves")

    def __init__(self, parts: tuple[All2All, All2All]) -> None:
        self._parts = parts

    def begin_step(self, num_tokens: int) -> None:
        """Begin a half, or a whole step, of `num_tokens` tokens."""
        self._parts[_slot.half if _slot.baton else 0].begin_step(num_tokens)

    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        """Return the weighted sums of this rank's tokens. Shapes: as All2All.exchange"""
        own = self._parts[_slot.half if _slot.baton else 0]
        return own.exchange(x, weights, places, num_slots, compute)


def alternates(run: RunSpec) -> bool:
    """Return whether this run divides steps into halves that overlap with exchanges."""
    if run.halves is None or run.communicator is None:
        return False
    return OVERLAPS in registry.admin.load_selection(run.communicator).capabilities
