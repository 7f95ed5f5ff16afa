"""Fair: the owner goes first who has got the least, as its weight counts; within an owner arrival.

A virtual counter for each owner counts prompt tokens that were computed and answer tokens, divided
by the owner's weight. An owner who comes back is lifted to the smallest counter among those who
wait: nobody saves up service by being away. So of two owners who both wait all the time, neither
gets ahead of the other by more than a constant. Priorities are classes: fairness holds inside each.
Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy
from dovetail_plugins.lazy_heap import LazyHeap

MAX_COUNTERS = 10_000
"""Owners without requests whose counters stay; those who have got the most stay longest."""


class Fair(SchedulingPolicy):
    """Orders owners by virtual counters.

    An owner of whom nothing runs does not wait for a row: the latest request of the owner who has
    got the most is preempted, if more of that owner's run in the same class.
    """

    info = Info(
        summary="the owner who has got the fewest tokens first, by weight, within a priority",
        source="https://arxiv.org/abs/2401.00588",
    )
    has_lines: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """What tokens count."""

        prompt_token_cost: float = field(
            default=1.0, metadata={"help": "what a computed token of a prompt counts", "ge": 0}
        )
        answer_token_cost: float = field(
            default=2.0, metadata={"help": "what a token of an answer counts", "ge": 0}
        )

    def __init__(self, options: Options) -> None:
        self.options = options
        self._counters: dict[Hashable, float] = {}
        self._weights: dict[Hashable, float] = {}
        self._waiting: dict[float, LazyHeap[Hashable]] = {}
        """The lines of each class in which somebody waits, by counter."""
        self._last: dict[float, Hashable] = {}

    def line(self, request: RequestView) -> tuple[float, str]:
        """Return the request's class and its owner."""
        return (request.priority, request.owner)

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the arrival time."""
        return (request.arrival_s,)

    def line_key(self, line: Hashable) -> tuple[float, ...]:
        """Return (class, counter)."""
        assert isinstance(line, tuple)
        return (line[0], self._counters.get(line, 0.0))

    def opened(self, line: Hashable, request: RequestView) -> None:
        """Lift the owner's counter to the smallest among those who wait in the same class; if
        nobody does, to that of the last who did."""
        priority = request.priority
        waiting = self._waiting.setdefault(priority, LazyHeap(self._counters.__getitem__))
        lowest = waiting.first() if waiting else self._last.get(priority)
        counter = max(self._counters.get(line, 0.0), self._counters.get(lowest, 0.0))
        self._counters[line], self._weights[line] = counter, request.weight
        waiting.put(line)

    def closed(self, line: Hashable) -> None:
        """Forget old counters if there are too many."""
        assert isinstance(line, tuple)
        self._waiting[line[0]].discard(line)
        self._last[line[0]] = line
        if len(self._counters) > MAX_COUNTERS + sum(map(len, self._waiting.values())):
            self._forget()

    def served(self, line: Hashable, num_prompt_tokens: int, num_answer_tokens: int) -> None:
        """Count tokens."""
        assert isinstance(line, tuple)
        cost = num_prompt_tokens * self.options.prompt_token_cost
        cost += num_answer_tokens * self.options.answer_token_cost
        counter = self._counters.get(line, 0.0)
        self._counters[line] = counter + cost / self._weights.setdefault(line, 1.0)

    def makes_way(self, line: Hashable, num_running: int, other: Hashable, num_other: int) -> bool:
        """Return whether nothing of an owner runs, and more than one request of the other's."""
        assert isinstance(line, tuple) and isinstance(other, tuple)
        return num_running == 0 and num_other > 1 and line[0] <= other[0]

    def _forget(self) -> None:
        """Drop half of the counters of owners who do not wait: the smallest. Mutates: self"""
        waiting = set(chain.from_iterable(one.in_order() for one in self._waiting.values()))
        idle = sorted(self._counters.keys() - waiting, key=self._counters.__getitem__)
        for line in idle[: len(idle) // 2]:
            del self._counters[line], self._weights[line]
