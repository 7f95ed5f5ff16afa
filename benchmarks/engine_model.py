"""Engines as a simulation sees them: what a router knows of one, and how long its steps take.

Prompts are whole blocks, as in Mooncake's published traces, and a router's token is a block.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass

BLOCK = 512
"""Tokens of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """An engine's times and memory: about one large GPU with a model of 8 billion parameters."""

    prefill_tokens_s: float = 16_000.0
    step_s: float = 0.012
    row_s: float = 0.00006
    budget_tokens: int = 8192
    max_rows: int = 256
    cache_tokens: int = 400_000

    def seconds(self, num_rows: int, num_prompt_tokens: int) -> float:
        """Return how long a step takes with so many rows that get a token each."""
        return self.step_s + num_rows * self.row_s + num_prompt_tokens / self.prefill_tokens_s


@dataclass(slots=True)
class Job:
    """A request under way. `blocks` are its prompt's keys, `left` prompt tokens to compute."""

    arrived_s: float
    blocks: tuple[int, ...]
    num_answer: int
    left: int = 0


class Model:
    """An engine: what a router sees of it, and what it does. A router's token is a block here.

    A step computes at most `budget_tokens` of prompts; steps without any are taken together until a
    request ends or another comes.
    """

    def __init__(self, number: int, hardware: Hardware) -> None:
        self.number = number
        self.pending_tokens = 0
        self.hit_blocks = 0
        self.asked_blocks = 0
        self.version = 0
        self.busy_s = 0.0
        self._hardware = hardware
        self._most_blocks = hardware.cache_tokens // BLOCK
        self._held_blocks = 0
        self._steps = 0
        self._began_s = self._step_s = 0.0
        self._planned = 0
        self._waiting: deque[Job] = deque()
        self._filling: list[Job] = []
        self._drawing: list[tuple[int, int, Job]] = []
        self._cache: OrderedDict[int, None] = OrderedDict()

    @property
    def num_running(self) -> int:
        """Return the requests that are in steps."""
        return len(self._filling) + len(self._drawing)

    @property
    def num_waiting(self) -> int:
        """Return the requests in line."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Return the share of the cache that requests hold."""
        return min(1.0, self._held_blocks / self._most_blocks)

    def add(self, job: Job, now_s: float) -> float | None:
        """Queue a request; return when the next thing happens, None when that is known already."""
        self._waiting.append(job)
        self.pending_tokens += len(job.blocks)
        if not self._planned:
            return self._plan(now_s)
        done = max(1, math.ceil((now_s - self._began_s) / self._step_s))
        if done >= self._planned:
            return None
        self._planned = done
        self.version += 1
        return self._began_s + done * self._step_s

    def go_on(self, now_s: float, first: list[float]) -> float | None:
        """Record the planned steps; return when the next thing happens, None for never."""
        self._steps += self._planned
        self.busy_s += self._planned * self._step_s
        for job in self._filling:
            if not job.left:
                first.append(now_s - job.arrived_s)
                self.pending_tokens -= len(job.blocks)
                self._keep(job.blocks)
                heapq.heappush(self._drawing, (self._steps + job.num_answer - 1, id(job), job))
        self._filling = [job for job in self._filling if job.left]
        while self._drawing and self._drawing[0][0] <= self._steps:
            job = heapq.heappop(self._drawing)[2]
            self._held_blocks -= _held(job)
            self._keep(job.blocks)
        return self._plan(now_s)

    def _plan(self, now_s: float) -> float | None:
        budget = self._hardware.budget_tokens
        filled = 0
        for job in self._filling:
            filled += self._fill(job, budget - filled)
        while self._waiting and filled < budget and self._admits(self._waiting[0]):
            job = self._waiting.popleft()
            self._begin(job)
            filled += self._fill(job, budget - filled)
        if not self._filling and not self._drawing:
            self._planned = 0
            return None
        self._step_s = self._hardware.seconds(len(self._drawing), filled)
        self._began_s = now_s
        self._planned = 1 if self._filling else max(1, self._drawing[0][0] - self._steps)
        self.version += 1
        return now_s + self._planned * self._step_s

    @staticmethod
    def _fill(job: Job, budget: int) -> int:
        take = min(job.left, budget)
        job.left -= take
        return take

    def _admits(self, job: Job) -> bool:
        fits = self._held_blocks + _held(job) <= self._most_blocks
        return (fits or not self.num_running) and self.num_running < self._hardware.max_rows

    def _begin(self, job: Job) -> None:
        hit = 0
        for key in job.blocks[:-1]:  # the last token is always computed
            if key not in self._cache:
                break
            hit += 1
        job.left = (len(job.blocks) - hit) * BLOCK
        self.hit_blocks += hit
        self.asked_blocks += len(job.blocks)
        self._held_blocks += _held(job)
        self._filling.append(job)

    def _keep(self, blocks: tuple[int, ...]) -> None:
        """Have a prompt's blocks cached, the first ones last to be forgotten."""
        cache = self._cache
        for key in reversed(blocks):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > self._most_blocks:
            cache.popitem(last=False)


def _held(job: Job) -> int:
    return len(job.blocks) + job.num_answer // BLOCK + 1
