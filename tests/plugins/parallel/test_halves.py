"""Halves of a step hand over at exchanges: in the same order on every rank, and without a deadlock
when one of them fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from dovetail import registry
from dovetail.interfaces.all2all import All2All, Compute
from dovetail.interfaces.communicator import OVERLAPS, Communicator, Membership
from dovetail.parallel.halves import HalfBatches, HalvesAll2All, HandingOver
from dovetail_testing.thread_ranks import ThreadCommunicator, ThreadRanks

T = TypeVar("T")


class Alone(ThreadCommunicator):
    """A rank alone, whose calls leave a note in a list and begin without waiting. `fails_at`: the
    result of that call is an error."""

    def __init__(self, notes: list[str], fails_at: int | None = None) -> None:
        super().__init__(None, Membership(rank=0, size=1, address=""))
        self.notes, self.fails_at, self.num_calls = notes, fails_at, 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        self.num_calls += 1
        number = self.num_calls
        self.notes.append(f"begin {number}")

        def finish() -> T:
            self.notes.append(f"end {number}")
            if number == self.fails_at:
                raise RuntimeError("rank 1 is gone")
            return call()

        return finish


def half(name: str, group: Communicator, notes: list[str], rounds: int = 2) -> Callable[[], str]:
    """Return a half that computes, and exchanges so often."""

    def run() -> str:
        for number in range(rounds + 1):
            notes.append(f"{name}{number}")
            if number < rounds:
                group.all_reduce(torch.zeros(1))
        return name

    return run


def test_one_computes_while_the_others_exchange_is_under_way() -> None:
    notes = list[str]()
    group = HandingOver(Alone(notes))
    halves = HalfBatches(alternates=True)
    assert halves.run(half("a", group, notes), half("b", group, notes, rounds=1)) == ("a", "b")
    assert notes == [
        *("a0", "begin 1", "b0", "begin 2", "end 1", "a1", "begin 3"),
        *("end 2", "b1", "end 3", "a2"),
    ]


def test_outside_halves_calls_are_those_of_the_communicator() -> None:
    notes = list[str]()
    group = HandingOver(Alone(notes))
    assert group.all_reduce(torch.ones(1)).tolist() == [1.0] and notes == []
    one_by_one = HalfBatches(alternates=False)
    assert one_by_one.run(half("a", group, notes), half("b", group, notes)) == ("a", "b")
    assert notes == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("at", ["a0", "a1", "a2", "b0", "b1", "b2", "call 1", "call 2", "call 4"])
def test_a_fault_of_one_half_ends_both_and_is_told(at: str) -> None:
    """What has begun ends, so that ranks stay in step, and the next step runs."""
    notes = list[str]()

    class Notes(list[str]):
        def append(self, note: str) -> None:
            notes.append(note)
            if note == at:
                raise ValueError(f"fault at {at}")

    fails_at = int(at.removeprefix("call ")) if at.startswith("call") else None
    alone = Alone(notes, fails_at)
    group, halves = HandingOver(alone), HalfBatches(alternates=True)
    with pytest.raises((ValueError, RuntimeError), match=r"fault at|rank 1 is gone"):
        halves.run(half("a", group, Notes()), half("b", group, Notes()))
    begun = {note.split()[1] for note in notes if note.startswith("begin")}
    assert begun == {note.split()[1] for note in notes if note.startswith("end")}
    alone.fails_at = None
    assert halves.run(half("a", group, []), half("b", group, [])) == ("a", "b")


@pytest.mark.parametrize("extra", [(0, 0), (0, 1), (1, 0)])
def test_halves_of_engines_exchange_with_the_same_half(extra: tuple[int, int]) -> None:
    """Two engines of two ranks. One's halves make more calls within the engine, such as for
    adapters that the other's rows do not use."""
    columns = [ThreadRanks(2) for _ in range(2)]
    engines = [ThreadRanks(2) for _ in range(2)]

    def rank(engine: int, number: int) -> list[list[list[float]]]:
        across = HandingOver(columns[number].members[engine], takes_turns=True)
        within = HandingOver(engines[engine].members[number])

        def work(half: int) -> list[list[float]]:
            found = []
            for layer in range(4):
                for _ in range(extra[half] if engine == 0 else 0):
                    assert within.all_gather(torch.full((1,), 7.0 + half)).unique().numel() == 1
                tag = torch.tensor([10.0 * half + layer])
                found.append(across.all_gather(tag).flatten().tolist())
                assert within.all_reduce(tag.clone()).tolist() == [2 * float(tag)]
            return found

        return list(HalfBatches(alternates=True).run(lambda: work(0), lambda: work(1)))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(rank, engine, number) for engine in (0, 1) for number in (0, 1)]
        for future in futures:
            for number, told in enumerate(future.result(40)):
                assert told == [[10.0 * number + layer] * 2 for layer in range(4)]


class Counting(All2All):
    """Adds how many tokens it was told of."""

    def __init__(self, options: object, group: Communicator) -> None:
        self.group, self.num_tokens = group, 0

    def begin_step(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        return self.group.all_reduce(x) + self.num_tokens


def test_each_half_knows_its_own_tokens() -> None:
    group = HandingOver(Alone([]))
    made = HalvesAll2All((Counting(None, group), Counting(None, group)))

    def work(num_tokens: int) -> float:
        made.begin_step(num_tokens)
        group.all_reduce(torch.zeros(1))
        none = torch.zeros(0)
        return float(made.exchange(torch.zeros(1), none, none, 1, lambda *given: given[0]))

    assert HalfBatches(alternates=True).run(lambda: work(3), lambda: work(5)) == (3.0, 5.0)
    assert work(8) == 8.0


def test_gloo_overlaps_with_computing(tmp_path: Path) -> None:
    """Two ranks whose exchanges take as long as computing. Halves take little more than half as
    long as one after the other, which is what they would without a thread of its own for gloo."""
    pytest.importorskip("dovetail_plugins")
    plugin = registry.load("communicator", "gloo")
    assert OVERLAPS in plugin.capabilities
    delay_s, rounds = 0.02, 5

    class Slow(plugin):  # type: ignore[misc, valid-type]
        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(delay_s)
            reduced: torch.Tensor = super().all_reduce(x)
            return reduced

    def rank(number: int) -> tuple[float, float]:
        member = Membership(rank=number, size=2, address=f"file://{tmp_path}/meeting")
        slow = Slow(None, member)
        group = HandingOver(slow)

        def work() -> float:
            x = torch.ones(3)
            for _ in range(rounds):
                time.sleep(delay_s)  # computes
                x = group.all_reduce(x)
            return float(x.sum())

        try:
            seconds = []
            for halves in (HalfBatches(alternates=False), HalfBatches(alternates=True)):
                started_s = time.perf_counter()
                assert halves.run(work, work) == (3.0 * 2**rounds,) * 2
                seconds.append(time.perf_counter() - started_s)
            return seconds[0], seconds[1]
        finally:
            slow.close()

    with ThreadPoolExecutor(2) as pool:
        for one_by_one, overlapped in pool.map(rank, range(2)):
            assert one_by_one >= 4 * rounds * delay_s
            assert overlapped < 0.75 * one_by_one
