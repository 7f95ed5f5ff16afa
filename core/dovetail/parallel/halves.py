"""Halves: two halves of a step, one of which computes while the other's exchange is under way.

Each half runs in a thread of its own, and only one of them at a time: it hands over to the other
where it has begun an exchange between ranks, and waits for that exchange once it has been handed
over to again. So the first half is ahead of the second by less than one exchange, in every layer;
what it writes there, the second may read. Who computes depends on the calls that the halves make
and never on time: all ranks make the same calls in the same order.

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
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import RunSpec

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class OtherHalfFailed(Exception):
    """Ends a half at its exchange, because the other one has raised."""


class Baton:
    """Says which half of a step computes. Its fields are read and written by that one alone.

    `begun` counts, for groups in which halves must take turns, the calls that each has begun.
    """

    def __init__(self) -> None:
        self._turns = (threading.Lock(), threading.Lock())
        for turn in self._turns:
            turn.acquire()
        self._is_running = [True, True]
        self._has_failed = False
        self.begun: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def wait_for_start(self) -> None:
        """Return when the second half may begin. Raises: OtherHalfFailed"""
        self._wait(1)

    def hand_over(self, half: int) -> None:
        """Let the other half compute, and return when it hands over; at once if it has ended.
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
        """Compute no more in this half. Mutates: self"""
        self._is_running[half] = False
        self._has_failed |= has_failed
        if self._is_running[1 - half]:
            self._turns[1 - half].release()

    def take_turn(self, half: int, group: int) -> None:
        """Wait until the other half has begun as many calls to a group: the first half's come
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
    """Have what exchanges inside a with block hand over as this half, and end it behind."""
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


class Halves:
    """Runs the halves of steps. `alternates` False: one after the other, where exchanges cannot be
    under way while something computes."""

    def __init__(self, *, alternates: bool) -> None:
        self.alternates = alternates
        self._pool = ThreadPoolExecutor(1, "dovetail-second-half") if alternates else None

    def run(self, first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
        """Return what both halves return; the first one runs in this thread. Raises: what the one
        that failed has raised; the other ends at its next exchange"""
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
    """A group whose calls hand over to the other half of a step; outside halves they are those of
    the communicator. `takes_turns`: ranks of other engines are in it, whose halves may make other
    calls to other groups in between; so halves call it in turns."""

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
            finish()  # the other ranks have begun it too
            raise
        return finish()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x. Mutates: x"""
        return self._call(lambda: self._inner.all_reduce(x))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x in rank order. Shapes: x [..] -> [size, ..]"""
        return self._call(lambda: self._inner.all_gather(x))

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return the x of rank `source`. Mutates: x"""
        return self._call(lambda: self._inner.broadcast(x, source))

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum. Shapes: x [size * N, ..] -> [N, ..]"""
        return self._call(lambda: self._inner.reduce_scatter(x))

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the ranks had for this one. Shapes: x [size * N, ..] -> [size * N, ..]"""
        return self._call(lambda: self._inner.all_to_all(x))

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the rows that the ranks had for this one.

        Shapes: x [rows sent, ..] -> [received, ..]
        """
        return self._call(lambda: self._inner.all_to_all_rows(x, counts))

    def send(self, x: torch.Tensor) -> None:
        """Give x to the other rank of two. Stages do, before and after the halves of a step."""
        self._inner.send(x)

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the other rank of two sends. Mutates: x"""
        return self._inner.receive(x)

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        self._inner.barrier()

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._inner.close()


class HalvesAll2All(All2All):
    """An exchange for each half, as it knows how many tokens the ranks have now."""

    info = Info(summary="the exchanges of a step in two halves")

    def __init__(self, parts: tuple[All2All, All2All]) -> None:
        self._parts = parts

    def begin_step(self, num_tokens: int) -> None:
        """Note that a half, or a whole step, begins with so many tokens."""
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
    """Return whether a run's steps are divided, and its halves hand over at exchanges."""
    if run.halves is None or run.communicator is None:
        return False
    return OVERLAPS in registry.load_selection(run.communicator).capabilities
