"""Lines of waiting jobs, for a policy that orders lines: each owner's jobs in a line of its own.

While a job waits, its order is that within its line; while it runs, the line's key precedes it. A
line that was served moves when it comes to the front, or at once if its key has got smaller. So a
plan costs O(log(lines)) for each job that starts, whatever the number of waiting jobs.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import Counter
from collections.abc import Hashable
from math import isfinite
from time import monotonic

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.scheduler import KVCache
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.lazy_heap import LazyHeap
from dovetail_plugins.schedulers._jobs import ScheduledRequest, order_of, remove
from dovetail_plugins.schedulers._keys import Keys, Queue, View

logger = logging.getLogger(__name__)


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
        for line in drawn:
            # One whose key has grown moves when it comes to the front.
            if line not in keys or keys[line] < before[line]:
                self._lines.move(line)
        for job in jobs:
            key, index = job.in_line
            job.order = ((*keys[job.line], *key), index)
        jobs.sort(key=order_of)

    def start(self, job: ScheduledRequest, num_new: int) -> None:
        """Charge a job's new tokens to its line. Mutates: its order"""
        self._running[job.line] += 1
        if num_new:
            self._count(job.line, num_new, 0)
        line_key = self.key_again(job.line, self._keys_of_lines.get(job.line, ()))
        self._lines.move(job.line)
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
        super().__init__()
        self._keys = keys
        self._by_line: dict[Hashable, list[ScheduledRequest]] = {}
        self._places: dict[Hashable, tuple[tuple[float, ...], int]] = {}
        """The last key of each line, and minus the number of its opening, which no other has."""
        self._lines = LazyHeap(self._place_now)
        self._num_opened = 0
        self._num_jobs = 0
        self._sorted: list[ScheduledRequest] | None = None

    def __len__(self) -> int:
        return self._num_jobs

    def __getitem__(self, index: int) -> ScheduledRequest:
        if index == 0:
            return self._by_line[self._lines.first()][0]
        if self._sorted is None:
            in_order = self._lines.in_order()
            self._sorted = [job for line in in_order for job in self._by_line[line]]
        return self._sorted[index]

    def add(self, job: ScheduledRequest) -> None:
        """Put a job into its line, which is opened if need be. Mutates: self"""
        jobs = self._by_line.get(job.line)
        if jobs is None:
            self._keys.open(job)
            self._num_opened += 1
            self._places[job.line] = (self._keys.line_key(job.line), -self._num_opened)
            self._lines.put(job.line)
            jobs = self._by_line[job.line] = []
        insort(jobs, job, key=order_of)
        self._num_jobs += 1
        self._sorted = None

    def remove(self, job: ScheduledRequest) -> None:
        """Take a job out. Mutates: self"""
        jobs = self._by_line[job.line]
        remove(jobs, job)
        self._num_jobs -= 1
        self._sorted = None
        if not jobs:
            del self._by_line[job.line], self._places[job.line]
            self._lines.discard(job.line)
            self._keys.close(job.line)

    def renew(self, num_starts: int) -> None:
        """Begin a plan, in which lines move only if a job starts. Mutates: self"""
        self._sorted = None

    def move(self, line: Hashable) -> None:
        """Put a line to its place whose key may have got smaller. Mutates: self"""
        if line in self._places:
            self._lines.put(line)

    def _place_now(self, line: Hashable) -> tuple[tuple[float, ...], int]:
        key, number = self._places[line]
        self._places[line] = place = (self._keys.key_again(line, key), number)
        return place


def keys_of(policy: SchedulingPolicy, cache: KVCache) -> Keys:
    """Return what asks a policy."""
    return LineKeys(policy, cache) if policy.has_lines else Keys(policy, cache)
