"""Adapters of an engine: what is read, what lies in which slot, and who waits."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from dovetail.engine.parts.adapters import PASSES_PER_SLOT, AdapterHolder, Adapters
from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.data.step import NO_SLOT, StepPlan
from dovetail.interfaces.executor import Preparation

EMPTY = StepPlan(step_id=1, rows=())


class Ranks:
    """Carries out what an engine orders, as ranks do, and checks that it can be."""

    def __init__(self, *, is_late: bool = False) -> None:
        self.is_late = is_late
        self.on_host: dict[str, AdapterSource] = {}
        self.slots: dict[int, str] = {}
        self.pending: list[tuple[AdapterSource, Future[None]]] = []
        self.num_reads = 0

    def read(self, item: Preparation) -> Future[None]:
        assert isinstance(item, AdapterSource)
        self.num_reads += 1
        done: Future[None] = Future()
        self.pending.append((item, done))
        if not self.is_late:
            self.arrive()
        return done

    def arrive(self) -> None:
        pending, self.pending = self.pending, []
        for item, done in pending:
            if item.path == "broken":
                done.set_exception(RequestError("the file is torn.", where="a file"))
                continue
            self.on_host[item.key] = item
            done.set_result(None)

    def follow(self, plan: StepPlan) -> None:
        for move in plan.adapters:
            self.slots[move.slot] = self.on_host[move.key].name
        for key in plan.dropped_adapters:
            self.on_host.pop(key, None)


def made(slots: int = 2, host: int = 4, *, is_late: bool = False) -> tuple[Adapters, Ranks]:
    ranks = Ranks(is_late=is_late)
    spec = AdapterSpec(max_slots=slots, max_host=host, dtype="float32")
    return Adapters(spec, ranks.read), ranks


def load(adapters: Adapters, *names: str, replaces: bool = False) -> None:
    for name in names:
        done = adapters.load(AdapterSource(name=name, path=f"/{name}"), replaces=replaces)
        adapters.poll()
        done.result(0)


def held(adapters: Adapters, ranks: Ranks, name: str) -> AdapterHolder:
    """Hold an adapter as a request does that runs at once."""
    holder, read = adapters.hold(name)
    assert read.done() and adapters.take_slot(holder)
    ranks.follow(adapters.take_moves(EMPTY))
    assert ranks.slots[holder.slot] == name
    return holder


def test_an_adapter_is_served_once_it_has_been_read() -> None:
    adapters, ranks = made(is_late=True)
    done = adapters.load(AdapterSource(name="a", path="/a"))
    adapters.poll()
    assert not done.done() and adapters.served() == ()
    with pytest.raises(RequestError, match="not loaded") as caught:
        adapters.hold("a")
    assert caught.value.status == 404
    ranks.arrive()
    adapters.poll()
    assert done.done() and [source.name for source in adapters.served()] == ["a"]


def test_a_broken_adapter_ends_its_own_load_alone() -> None:
    adapters, _ = made()
    load(adapters, "a")
    done = adapters.load(AdapterSource(name="b", path="broken"))
    adapters.poll()
    with pytest.raises(RequestError, match="torn"):
        done.result(0)
    assert [source.name for source in adapters.served()] == ["a"]
    load(adapters, "b")


def test_a_name_is_given_once_unless_it_is_replaced() -> None:
    adapters, ranks = made()
    load(adapters, "a")
    with pytest.raises(RequestError, match="loaded already"):
        adapters.load(AdapterSource(name="a", path="/other"))
    first = held(adapters, ranks, "a")
    load(adapters, "a", replaces=True)
    second = held(adapters, ranks, "a")
    assert first.key != second.key, "cached prefixes of the two must not be mixed"
    assert first.slot != second.slot, "the request under way keeps its own"


def test_a_full_engine_gives_the_slot_that_was_not_used_for_longest() -> None:
    adapters, ranks = made(slots=2)
    load(adapters, "a", "b", "c")
    first, second = held(adapters, ranks, "a"), held(adapters, ranks, "b")
    holder, _ = adapters.hold("c")
    assert not adapters.take_slot(holder) and holder.slot == NO_SLOT
    assert adapters.names_in_use == (("a", "b"), ("c",))
    adapters.release(first)
    assert adapters.has_freed and adapters.take_slot(holder) and holder.slot == first.slot
    adapters.release(second)
    adapters.release(holder)
    assert held(adapters, ranks, "b").slot == second.slot, "it is still there"


def test_requests_for_an_adapter_in_a_slot_pass_a_waiting_one_so_often() -> None:
    adapters, ranks = made(slots=1)
    load(adapters, "a", "b")
    holders = [held(adapters, ranks, "a")]
    waiting, _ = adapters.hold("b")
    assert not adapters.take_slot(waiting)
    for _ in range(PASSES_PER_SLOT):
        holders.append(held(adapters, ranks, "a"))
    late, _ = adapters.hold("a")
    assert not adapters.take_slot(late), "it has been passed often enough"
    for holder in holders:
        adapters.release(holder)
    assert not adapters.take_slot(late), "the other came first"
    assert adapters.take_slot(waiting)
    adapters.release(waiting)
    assert adapters.take_slot(late)


def test_host_memory_is_bounded_and_what_is_gone_is_read_again() -> None:
    adapters, ranks = made(slots=1, host=2)
    load(adapters, "a", "b", "c", "d")
    ranks.follow(adapters.take_moves(EMPTY))
    assert len(ranks.on_host) == 2
    adapters.release(held(adapters, ranks, "a"))
    assert ranks.num_reads == 5 and len(ranks.on_host) == 2


def test_a_request_that_waits_keeps_the_copy_of_its_adapter() -> None:
    """Its slot may go to another before it runs, and is filled from the copy then."""
    adapters, ranks = made(slots=1, host=1)
    load(adapters, "a", "b", "c")
    adapters.release(held(adapters, ranks, "a"))
    second, _ = adapters.hold("a")
    third = held(adapters, ranks, "b")
    load(adapters, "c", replaces=True)
    assert not adapters.take_slot(second)
    adapters.release(third)
    assert adapters.take_slot(second)
    ranks.follow(adapters.take_moves(EMPTY))
    assert ranks.slots[second.slot] == "a"


def test_an_adapter_that_requests_hold_outlives_its_name() -> None:
    adapters, ranks = made()
    load(adapters, "a")
    holder = held(adapters, ranks, "a")
    adapters.unload("a")
    assert adapters.served() == ()
    ranks.follow(adapters.take_moves(EMPTY))
    assert len(ranks.on_host) == 1
    adapters.release(holder)
    ranks.follow(adapters.take_moves(EMPTY))
    assert not ranks.on_host
    with pytest.raises(RequestError, match="not loaded"):
        adapters.unload("a")


def test_nothing_is_lost_in_two_thousand_operations() -> None:
    rng = random.Random(5)
    adapters, ranks = made(slots=3, host=5)
    names = [f"a{i}" for i in range(9)]
    running: list[tuple[str, AdapterHolder]] = []
    waiting: list[tuple[str, AdapterHolder]] = []
    num_ended = num_begun = 0
    for _ in range(2000):
        name, choice = rng.choice(names), rng.random()
        served = {source.name for source in adapters.served()}
        if choice < 0.1:
            load(adapters, name, replaces=True)
        elif choice < 0.15 and name in served:
            adapters.unload(name)
        elif choice < 0.55 and name in served:
            holder, _ = adapters.hold(name)
            num_begun += 1
            (running if adapters.take_slot(holder) else waiting).append((name, holder))
        elif running:
            adapters.release(running.pop(rng.randrange(len(running)))[1])
            num_ended += 1
        still = []
        for name, holder in waiting:
            (running if adapters.take_slot(holder) else still).append((name, holder))
        waiting = still
        ranks.follow(adapters.take_moves(EMPTY))
        assert all(ranks.slots[holder.slot] == name for name, holder in running)
        assert len({holder.slot for _, holder in running}) <= 3
        assert len(ranks.on_host) <= 5 + len({h.key for _, h in (*running, *waiting)})
    for _ in range(len(waiting) + len(running)):
        for name, holder in list(running):
            adapters.release(holder)
            running.remove((name, holder))
            num_ended += 1
        for name, holder in list(waiting):
            if adapters.take_slot(holder):
                waiting.remove((name, holder))
                running.append((name, holder))
    assert num_ended == num_begun and not running and not waiting
    assert adapters.names_in_use == ((), ())


def of(owner: str, path: str = "p") -> AdapterSource:
    return AdapterSource(name="x", path=path, owner=owner)


def test_a_name_belongs_to_the_key_that_loads_it_while_it_is_read_too() -> None:
    adapters, ranks = made(is_late=True)
    first = adapters.load(of("a"))
    assert adapters.load(of("a")) is first
    for replaces in (False, True):
        with pytest.raises(RequestError, match=r"loaded already|another key"):
            adapters.load(of("b"), replaces=replaces)
    with pytest.raises(RequestError, match="loaded already"):
        adapters.load(of("a", "q"))
    ranks.arrive()
    adapters.poll()
    assert first.done() and [one.owner for one in adapters.served()] == ["a"]
    with pytest.raises(RequestError) as refused:
        adapters.load(of("b"), replaces=True)
    assert (refused.value.status, refused.value.code) == (403, "adapter_of_another_key")
    again = adapters.load(of("a", "q"), replaces=True)
    ranks.arrive()
    adapters.poll()
    assert again.done() and [one.path for one in adapters.served()] == ["q"]
