"""The order of jobs: the policy's keys, and the queue of waiting jobs that is sorted by them.

A policy with static keys is asked once for each job. A policy whose keys move is asked again for
all running jobs (at most `max_rows`) before each plan, and for at most `max_asked` waiting jobs
before any is admitted: a sixteenth are those with the oldest keys, the others those that may start.
So with N waiting jobs no key is older than 16 N / max_asked such plans, and a job that starts has a
fresh one. The cost of a plan is bounded by these calls of `key`, each of which may look into the
prefix index.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import OrderedDict
from itertools import islice
from math import isfinite
from time import monotonic

from dovetail.engine.request import RUNNING
from dovetail.errors import BrokenPlugin
from dovetail.interfaces.scheduler import KVCache, RequestState
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.lazy_heap import LazyHeap
from dovetail_plugins.schedulers._jobs import Order, ScheduledRequest, order_of, remove

PER_OLD = 16
"""One of so many waiting jobs that are asked is one with an old key."""
logger = logging.getLogger(__name__)


class View:
    """A job at one moment: implements interfaces.scheduling_policy.RequestNow."""

    __slots__ = ("_cache", "_request", "max_tokens", "now_s")

    def __init__(self, job: ScheduledRequest, cache: KVCache, now_s: float) -> None:
        self._request: RequestState = job.request
        self._cache = cache
        self.max_tokens = job.max_tokens
        # The clock of arrivals may be another machine's.
        self.now_s = self._request.arrival_s + now_s - job.queued_s

    @property
    def request_id(self) -> str:
        """Return the request's id."""
        return self._request.request_id

    @property
    def owner(self) -> str:
        """Return whom it is from."""
        return self._request.owner[0]

    @property
    def weight(self) -> float:
        """Return its owner's weight."""
        return self._request.owner[1]

    @property
    def priority(self) -> int:
        """Return the priority that the client gave it."""
        return self._request.priority

    @property
    def arrival_s(self) -> float:
        """Return when it arrived."""
        return self._request.arrival_s

    @property
    def num_prompt_tokens(self) -> int:
        """Return the length of its prompt."""
        return self._request.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Return the length of prompt and answer so far."""
        return self._request.num_tokens

    @property
    def num_computed_tokens(self) -> int:
        """Return how many tokens of a running request are computed, or planned."""
        return self._request.num_computed_tokens

    @property
    def num_prefix_tokens(self) -> int:
        """Return how many leading tokens need no computation."""
        request = self._request
        if request.status == RUNNING:
            return request.num_computed_tokens
        return max(self._cache.find_prefix(request), self._cache.find_swapped(request))

    @property
    def num_preemptions(self) -> int:
        """Return how often it was preempted."""
        return self._request.num_preemptions


class Keys:
    """Asks the policy. `move`: it wants to be asked again. `counts`: it wants to know what is
    served (see `_lines`)."""

    counts = False

    def __init__(self, policy: SchedulingPolicy, cache: KVCache) -> None:
        self.move = policy.keys_move
        self._policy = policy
        self._cache = cache
        self._has_failed = False

    def queue(self, max_asked: int) -> Queue:
        """Return a queue in the order of these keys."""
        return MovingQueue(self, max_asked) if self.move else Queue()

    def start(self, job: ScheduledRequest, num_new: int) -> None:
        """Note that a job starts to run; `num_new` tokens of it were never computed. Mutates: its
        order, in which it runs"""

    def drew(self, job: ScheduledRequest, num_tokens: int) -> None:
        """Note new tokens of a job's answer."""

    def stop(self, job: ScheduledRequest) -> None:
        """Note that a job has left its row."""

    def makes_way(self, waiting: ScheduledRequest, running: ScheduledRequest) -> bool:
        """Return whether a running job may be preempted for a waiting one."""
        return False

    def order(self, job: ScheduledRequest, now_s: float) -> Order:
        """Return a job's order. Raises: BrokenPlugin for a key that would upset the order."""
        key = self._policy.key(View(job, self._cache, now_s))
        if not isinstance(key, tuple) or not isfinite(sum(key)):
            raise BrokenPlugin(
                f"the key {key!r} is not a tuple of finite numbers.", where="scheduling policy"
            )
        return key, job.arrival_index

    def order_again(self, job: ScheduledRequest, now_s: float) -> Order:
        """Return the order of a job that has one. It stays if the policy fails on the job: the
        first failure is logged."""
        try:
            return self.order(job, now_s)
        except Exception:
            self._note_failure(f"request {job.request.request_id}")
            return job.order

    def _note_failure(self, what: str) -> None:
        """Log the error that is being handled, if it is the first. Mutates: self"""
        if not self._has_failed:
            logger.exception(
                "the scheduling policy failed on %s, which keeps its old key; later failures are "
                "not logged",
                what,
            )
        self._has_failed = True

    def renew(self, jobs: list[ScheduledRequest]) -> None:
        """Ask again for all of these jobs, and sort them. Mutates: jobs and their order"""
        now_s = monotonic()
        for job in jobs:
            job.order = self.order_again(job, now_s)
        jobs.sort(key=order_of)


class Queue:
    """The waiting jobs of a policy whose keys do not move, sorted by order."""

    def __init__(self) -> None:
        self._jobs: list[ScheduledRequest] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, index: int) -> ScheduledRequest:
        return self._jobs[index]

    def add(self, job: ScheduledRequest) -> None:
        """Insert a job by its order, which is new. Mutates: self"""
        insort(self._jobs, job, key=order_of)

    def remove(self, job: ScheduledRequest) -> None:
        """Take a job out. Mutates: self"""
        remove(self._jobs, job)

    def renew(self, num_starts: int) -> None:
        """Begin a plan that may start so many jobs."""


class MovingQueue(Queue):
    """The waiting jobs of a policy whose keys move."""

    def __init__(self, keys: Keys, max_asked: int) -> None:
        super().__init__()
        self._keys = keys
        self._max_asked = max_asked
        self._heap = LazyHeap(order_of)
        self._by_age: OrderedDict[ScheduledRequest, None] = OrderedDict()
        """The jobs, those first that were asked longest ago."""
        self._sorted: list[ScheduledRequest] | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def __getitem__(self, index: int) -> ScheduledRequest:
        if index == 0:
            return self._heap.first()
        if self._sorted is None:
            self._sorted = self._heap.in_order()
        return self._sorted[index]

    def add(self, job: ScheduledRequest) -> None:
        """Insert a job by its order, which is new. Mutates: self"""
        self._by_age[job] = None
        self._put(job)

    def remove(self, job: ScheduledRequest) -> None:
        """Take a job out. Mutates: self"""
        del self._by_age[job]
        self._heap.discard(job)
        self._sorted = None

    def renew(self, num_starts: int) -> None:
        """Ask about those asked longest ago, then about the first `num_starts`, until these have
        fresh keys. Mutates: self and the order of jobs"""
        now_s = monotonic()
        stale = list(islice(self._by_age, max(1, self._max_asked // PER_OLD)))
        fresh = set[ScheduledRequest]()
        while stale:
            for job in stale:
                self._ask(job, now_s)
            fresh.update(stale)
            first = self._heap.firsts(num_starts) if len(fresh) < self._max_asked else []
            stale = [job for job in first if job not in fresh][: self._max_asked - len(fresh)]

    def _ask(self, job: ScheduledRequest, now_s: float) -> None:
        self._by_age.move_to_end(job)
        order = self._keys.order_again(job, now_s)
        if order != job.order:
            job.order = order
            self._put(job)

    def _put(self, job: ScheduledRequest) -> None:
        self._heap.put(job)
        self._sorted = None
