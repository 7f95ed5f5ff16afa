"""Lines of waiting jobs, for a policy that orders lines: each owner's jobs in a line of its own.

While a job waits, its order is that within its line; while it runs, the line's key precedes it. A
line moves when it opens or is served, whoever waits in it: O(log(lines)) for each line that is
served between two plans, whatever the number of waiting jobs.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from math import isfinite
from time import monotonic
from typing import Any

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.scheduler import KVCache
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.schedulers._jobs import ScheduledRequest, order_of, remove
from dovetail_plugins.schedulers._keys import Keys, Queue, View

logger = logging.getLogger(__name__)
Head = tuple[tuple[float, ...], int]
"""The place of a line among the others: its key, and minus the number of its opening, which no
other has."""
MANY = 8
"""If more than one in so many lines moves, all are sorted."""


class LineKeys(Keys):
    """Asks a policy that has lines, and tells it what they get."""

    counts = True

    def __init__(self, policy: SchedulingPolicy, cache: KVCache) -> None:
        super().__init__(policy, cache)
        self.move = True
        self._lines = LineQueue(self)
        self._drawn: Counter[Hashable] = Counter()
        self._running: Counter[Hashable] = Counter()
        self._keys_of_lines: dict[Hashable, tuple[float, ...]] = {}
        """The last keys of lines with running jobs."""

    def queue(self, max_asked: int) -> Queue:
        """Return the lines."""
        return self._lines

    def order(self, job: ScheduledRequest, now_s: float) -> tuple[tuple[float, ...], int]:
        """Return a job's order within its line. Mutates: its line. Raises: BrokenPlugin"""
        job.line = self._policy.line(View(job, self._cache, now_s))
        job.in_line = super().order(job, now_s)
        return job.in_line

    def order_again(self, job: ScheduledRequest, now_s: float) -> tuple[tuple[float, ...], int]:
        """Return a job's order within its line, which never changes."""
        return job.in_line

    def renew(self, jobs: list[ScheduledRequest]) -> None:
        """Report what was drawn since the last plan, and sort the running jobs. Mutates: jobs"""
        drawn, self._drawn = self._drawn, Counter()
        for line, num_tokens in drawn.items():
            self._count(line, 0, num_tokens)
        before = self._keys_of_lines
        keys = {line: self.key_again(line, before[line]) for line in self._running}
        self._keys_of_lines = keys
        self._lines.move_all(drawn, keys)
        for job in jobs:
            key, index = job.in_line
            job.order = ((*keys[job.line], *key), index)
        jobs.sort(key=order_of)

    def start(self, job: ScheduledRequest, num_new: int) -> None:
        """Charge a job's new tokens to its line. Mutates: its order"""
        self._running[job.line] += 1
        if num_new:
            self._count(job.line, num_new, 0)
            self._lines.move_all((job.line,), {})
        line_key = self.key_again(job.line, self._keys_of_lines.get(job.line, ()))
        self._keys_of_lines[job.line] = line_key
        key, index = job.in_line
        job.order = ((*line_key, *key), index)

    def drew(self, job: ScheduledRequest, num_tokens: int) -> None:
        """Count tokens, which are charged with the next plan."""
        self._drawn[job.line] += num_tokens

    def stop(self, job: ScheduledRequest) -> None:
        """Count a running job less."""
        self._running[job.line] -= 1
        if not self._running[job.line]:
            del self._running[job.line]

    def key_again(self, line: Hashable, before: tuple[float, ...]) -> tuple[float, ...]:
        """Return a line's key, or its old one if the policy fails: the first failure is logged."""
        try:
            return self.line_key(line)
        except Exception:
            self._note_failure(f"the line {line}")
            return before

    def makes_way(self, waiting: ScheduledRequest, running: ScheduledRequest) -> bool:
        """Return whether the policy lets a running job be preempted for a waiting one."""
        num_running, num_other = self._running[waiting.line], self._running[running.line]
        try:
            return self._policy.makes_way(waiting.line, num_running, running.line, num_other)
        except Exception:
            self._note_failure(f"the line {waiting.line}")
            return False

    def line_key(self, line: Hashable) -> tuple[float, ...]:
        """Return a line's key. Raises: BrokenPlugin"""
        key = self._policy.line_key(line)
        if not isinstance(key, tuple) or not isfinite(sum(key)):
            raise BrokenPlugin(
                f"the key {key!r} of a line is not a tuple of finite numbers.",
                where="scheduling policy",
            )
        return key

    def open(self, job: ScheduledRequest) -> None:
        """Tell the policy of the first job of a line."""
        self._policy.opened(job.line, View(job, self._cache, monotonic()))

    def close(self, line: Hashable) -> None:
        """Tell the policy that nobody waits in a line."""
        try:
            self._policy.closed(line)
        except Exception:
            self._note_failure(f"the line {line}")

    def _count(self, line: Hashable, num_prompt_tokens: int, num_answer_tokens: int) -> None:
        try:
            self._policy.served(line, num_prompt_tokens, num_answer_tokens)
        except Exception:
            self._note_failure(f"the line {line}")


class LineQueue(Queue):
    """The waiting jobs by line, and the lines by their keys."""

    def __init__(self, keys: LineKeys) -> None:
        super().__init__(keys, 0)
        self._line_keys = keys
        self._by_line: dict[Hashable, list[ScheduledRequest]] = {}
        self._heads: list[tuple[Head, Any]] = []
        self._places: dict[Hashable, Head] = {}
        self._num_opened = 0
        self._num_jobs = 0

    def __len__(self) -> int:
        return self._num_jobs

    def __getitem__(self, index: int) -> ScheduledRequest:
        for _, line in self._heads:
            jobs = self._by_line[line]
            if index < len(jobs):
                return jobs[index]
            index -= len(jobs)
        raise IndexError(index)

    def add(self, job: ScheduledRequest) -> None:
        """Put a job into its line, which is opened if need be. Mutates: self"""
        jobs = self._by_line.get(job.line)
        if jobs is None:
            self._line_keys.open(job)
            self._num_opened += 1
            self._put(job.line, (self._line_keys.line_key(job.line), -self._num_opened))
            jobs = self._by_line[job.line] = []
        insort(jobs, job, key=order_of)
        self._num_jobs += 1

    def remove(self, job: ScheduledRequest) -> None:
        """Take a job out. Mutates: self"""
        jobs = self._by_line[job.line]
        remove(jobs, job)
        self._num_jobs -= 1
        if not jobs:
            del self._by_line[job.line]
            self._take_out(job.line)
            self._line_keys.close(job.line)

    def move_all(
        self, lines: Collection[Hashable], keys: Mapping[Hashable, tuple[float, ...]]
    ) -> None:
        """Put lines that were served to their places; `keys` has the keys of some. Mutates: self"""
        moved = {}
        for line in lines:
            if (place := self._places.get(line)) is not None:
                key = keys.get(line) or self._line_keys.key_again(line, place[0])
                if key != place[0]:
                    moved[line] = (key, place[1])
        if len(moved) * MANY < len(self._heads):
            for line, place in moved.items():
                self._take_out(line)
                self._put(line, place)
        elif moved:
            self._places |= moved
            self._heads = sorted(zip(self._places.values(), self._places, strict=True))

    def renew(self) -> None:
        """Do nothing: lines move when they are served."""

    def _put(self, line: Hashable, place: Head) -> None:
        insort(self._heads, (place, line))
        self._places[line] = place

    def _take_out(self, line: Hashable) -> Head:
        place = self._places.pop(line)
        del self._heads[bisect_left(self._heads, (place, line))]
        return place


def keys_of(policy: SchedulingPolicy, cache: KVCache) -> Keys:
    """Return what asks a policy."""
    return LineKeys(policy, cache) if policy.has_lines else Keys(policy, cache)
