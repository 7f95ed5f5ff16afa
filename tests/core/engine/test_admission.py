"""Admission: a request waits for all its loads, then part by part; and what the core calls when."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.admission import Admission
from dovetail.engine.core import EngineCore
from dovetail.engine.messages import EngineRequest, RequestUpdate
from dovetail.engine.parts.part import EnginePart, Ready, StepRecord
from dovetail.engine.request import Request
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import StepPlan
from dovetail_testing.fakes.engine import fake_spec


def request(name: str) -> ActiveRequest:
    sampling = SamplingParams(max_tokens=4)
    return ActiveRequest(
        Request(request_id=name, prompt_ids=(1, 2), sampling=sampling, seed=0, max_model_tokens=9)
    )


class Room(EnginePart):
    """Has requests wait until the room is opened; refuses and loads by name."""

    def __init__(self) -> None:
        self.load: Future[Any] = Future()
        self.waiting: list[ActiveRequest] = []
        self.error: BaseException | None = None
        self.is_open = False
        self.forgotten: list[str] = []

    def receive(self, active: ActiveRequest) -> None:
        if active.request_id == "refused":
            raise RequestError("not here.")
        if active.request_id.startswith("loads"):
            active.loads.append(self.load)

    def must_wait(self, active: ActiveRequest) -> bool:
        if not self.is_open:
            self.waiting.append(active)
        return not self.is_open

    def take_ready(self) -> Iterable[Ready]:
        ready, self.waiting = (self.waiting, []) if self.is_open else ([], self.waiting)
        return [(active, self.error) for active in ready]

    def forget(self, active: ActiveRequest) -> None:
        self.waiting = [one for one in self.waiting if one is not active]
        self.forgotten.append(active.request_id)


class Hall:
    """An admission through two rooms."""

    def __init__(self) -> None:
        self.rooms = (Room(), Room())
        self.scheduled: list[str] = []
        self.refused: dict[str, BaseException] = {}
        self.admission = Admission(self.rooms, self._schedule, self._refuse)

    def _schedule(self, active: ActiveRequest) -> None:
        self.scheduled.append(active.request_id)

    def _refuse(self, active: ActiveRequest, error: BaseException) -> None:
        self.refused[active.request_id] = error

    def open(self, number: int) -> None:
        self.rooms[number].is_open = True
        self.admission.advance()


def test_a_request_passes_the_rooms_in_order() -> None:
    hall = Hall()
    hall.admission.add(request("a"))
    hall.open(1)
    assert (list(hall.admission), hall.scheduled) == (["a"], [])
    hall.open(0)
    assert (len(hall.admission), hall.scheduled) == (0, ["a"])


def test_loads_come_before_any_room_and_others_overtake() -> None:
    hall = Hall()
    hall.admission.add(request("loads"))
    hall.open(0)
    hall.open(1)
    hall.admission.add(request("b"))
    assert (hall.scheduled, list(hall.admission)) == (["b"], ["loads"])
    hall.rooms[0].load.set_result(None)
    hall.rooms[1].load.set_result(None)
    hall.admission.advance()
    assert hall.scheduled == ["b", "loads"]


def test_a_failed_load_or_wait_refuses_the_request() -> None:
    hall = Hall()
    hall.admission.add(request("loads"))
    hall.rooms[0].load.set_result(None)
    hall.rooms[1].load.set_exception(OSError("no file"))
    hall.admission.advance()
    assert not len(hall.admission)
    hall.admission.add(request("waits"))
    hall.rooms[0].error = OSError("no slot")
    hall.open(0)
    hall.admission.add(request("refused"))
    assert {name: str(error) for name, error in hall.refused.items()} == {
        "loads": "no file",
        "waits": "no slot",
        "refused": "not here.",
    }
    assert not len(hall.admission) and hall.scheduled == []


@pytest.mark.parametrize("name", ["loads", "waits"])
def test_every_part_forgets_an_aborted_request(name: str) -> None:
    hall = Hall()
    hall.admission.add(request(name))
    assert hall.admission.abort(name) and not hall.admission.abort(name)
    assert [room.forgotten for room in hall.rooms] == [[name], [name]]
    hall.open(0)
    assert hall.scheduled == []


class Notes(EnginePart):
    """Notes what the core calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def receive(self, active: ActiveRequest) -> None:
        self.calls.append("receive")

    def begin(self, active: ActiveRequest, num_unfinished: int) -> None:
        self.calls.append(f"begin {num_unfinished}")

    def begin_step(self) -> None:
        self.calls.append("begin_step")

    def complete(self, plan: StepPlan) -> StepPlan:
        self.calls.append("complete")
        return plan

    def note(self, step: StepRecord) -> None:
        self.calls.append(f"note {step.num_unfinished}")

    def complete_update(self, active: ActiveRequest, update: RequestUpdate) -> RequestUpdate:
        self.calls.append(f"complete_update {update.finish_reason}")
        return update

    def end(self, active: ActiveRequest) -> None:
        self.calls.append("end")

    def forget(self, active: ActiveRequest) -> None:
        self.calls.append("forget")

    def publish(self) -> None:
        self.calls.append("publish")


def message(name: str, max_tokens: int) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(request_id=name, prompt_ids=(65, 66), sampling=sampling, seed=0)


def core_with(part: EnginePart, monkeypatch: pytest.MonkeyPatch) -> EngineCore:
    """Return an engine with one more part."""
    monkeypatch.setattr("dovetail.engine.parts.build._block_events", lambda *given: [part])
    return EngineCore(fake_spec())


def test_a_part_follows_a_request_and_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    core = core_with(notes, monkeypatch)
    core.add(message("r", 2))
    while core.has_work:
        core.step()
    step = ["begin_step", "complete"]
    ends = ["complete_update length", "end", "forget"]
    assert notes.calls == [
        *("receive", "begin 1"),
        *(*step, "note 1", "publish"),
        *(*step, "note 0", *ends, "publish"),
    ]


def test_a_request_whose_id_is_under_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    core = core_with(notes, monkeypatch)
    core.add(message("r", 2))
    core.add(message("r", 2))
    updates = [update for _ in range(3) for update in core.step().updates]
    assert [one.finish_reason for one in updates].count("error") == 1
    assert notes.calls.count("receive") == 1
