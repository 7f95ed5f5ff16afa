"""LLM keeps what is loaded out of garbage collections, unless the program has done so itself."""

from __future__ import annotations

import pytest

from dovetail.llm import llm

frozen = llm._loaded_is_frozen


class Collector:
    """Stands in for the module gc: some objects are frozen, or none; notes what is asked of it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[str] = []

    def get_freeze_count(self) -> int:
        self.asked.append("count")
        return self.count

    def freeze(self) -> None:
        self.asked.append("freeze")
        self.count += 1

    def unfreeze(self) -> None:
        self.asked.append("unfreeze")
        self.count = 0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    found = Collector(0)
    monkeypatch.setattr(llm, "gc", found)
    monkeypatch.setattr(llm._Freezing, "is_the_programs", False)
    return found


def test_what_is_loaded_is_frozen_while_requests_run(collector: Collector) -> None:
    for _ in range(2):
        with frozen():
            assert collector.count == 1
        assert collector.count == 0
    assert collector.asked == ["count", "freeze", "unfreeze"] * 2


def test_the_first_of_two_at_once_freezes(collector: Collector) -> None:
    with frozen(), frozen():
        assert collector.count == 1
    with pytest.raises(ValueError), frozen():
        raise ValueError
    assert collector.asked == ["count", "freeze", "unfreeze"] * 2


def test_a_program_that_froze_objects_is_left_alone_and_counted_once(
    collector: Collector,
) -> None:
    collector.count = 5
    for _ in range(3):
        with frozen():
            assert collector.count == 5
    assert collector.asked == ["count"]
