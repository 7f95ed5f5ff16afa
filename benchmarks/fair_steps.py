"""One owner's crowd and another's single requests, in an engine whose clock is processor time.

As fairness.py, without a server: A has --crowd long requests open all the time, B sends a short one
at random moments, each --period seconds on average. An engine's clock moves by the processor time
of its steps alone, and the engines take turns, so other programs of the machine do not count.
Printed are B's times to the first token (median, 99th percentile, also by that of the idle engine),
and tokens per second of processor time, by that of fcfs.

    PYTHONPATH=core:plugins:kernels python benchmarks/fair_steps.py [--seconds 30]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fairness import LONG, SHORT
from loads import percentile

from dovetail import LLM
from dovetail.engine.messages import EngineRequest
from dovetail.interfaces.data.sampling_params import SamplingParams

SLICE_STEPS = 20
WARM_S = 1.0


@dataclass(kw_only=True)
class Case:
    """An engine with its load, and a clock that the simulation moves."""

    core: Any
    crowd: int
    period_s: float
    random: Random = field(default_factory=lambda: Random(7))
    now_s: float = 0.0
    num_sent: int = 0
    num_tokens: int = 0
    next_s: float = WARM_S
    sent_s: dict[str, float] = field(default_factory=dict)
    first_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.crowd):
            self._send("A", LONG)

    def _send(self, owner: str, size: dict[str, tuple[int, int]]) -> str:
        name = f"{owner}{self.num_sent}"
        self.num_sent += 1
        num_prompt = self.random.randint(*size["prompt_tokens"])
        self.core.add(
            EngineRequest(
                request_id=name,
                prompt_ids=tuple(self.random.randrange(1000) for _ in range(num_prompt)),
                sampling=SamplingParams(
                    max_tokens=self.random.randint(*size["max_tokens"]), ignore_eos=True
                ),
                seed=self.num_sent,
                arrival_s=self.now_s,
                owner=(owner, 1.0),
            )
        )
        return name

    def step(self) -> None:
        """Send what B sends by now, run a step, and replace A's requests that ended."""
        if not self.core.has_work:
            self.now_s = max(self.now_s, self.next_s)
        while self.next_s <= self.now_s:
            name = self._send("B", SHORT)
            self.sent_s[name] = self.next_s
            self.next_s += self.random.expovariate(1 / self.period_s)
        begun_s = time.process_time()
        updates = self.core.step().updates
        self.now_s += time.process_time() - begun_s
        for update in updates:
            if self.now_s > WARM_S:
                self.num_tokens += len(update.token_ids)
            if update.token_ids and update.request_id in self.sent_s:
                self.first_s.append(self.now_s - self.sent_s.pop(update.request_id))
            if update.finish_reason and update.request_id.startswith("A"):
                self._send("A", LONG)

    def times_s(self) -> list[float]:
        """Return B's times to the first token; for those that have none, what they waited."""
        return [*self.first_s, *(self.now_s - sent_s for sent_s in self.sent_s.values())]

    @property
    def rate(self) -> float:
        """Return the tokens per second."""
        return self.num_tokens / (self.now_s - WARM_S)


def engine(policy: str, rows: int, more: list[str]) -> Any:
    """Return an engine core under a policy; `more` are NAME=VALUE of LLM's arguments."""
    words = dict(word.split("=", 1) for word in more)
    values = {name: int(value) if value.isdigit() else value for name, value in words.items()}
    llm = LLM(scheduling_policy=policy, max_num_seqs=rows, async_scheduling=False, **values)
    return llm._engine.core


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crowd", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--period", type=float, default=0.2)
    parser.add_argument(
        "--fair", nargs="*", default=[], help="NAME=VALUE for a further fair engine"
    )
    options = parser.parse_args()
    kinds = {"alone": ("fcfs", 0, []), "fcfs": ("fcfs", options.crowd, [])}
    kinds |= {"fair": ("fair", options.crowd, [])}
    for word in options.fair:
        kinds[f"fair {word}"] = ("fair", options.crowd, [word])
    cases = {
        name: Case(
            core=engine(policy, options.rows, more), crowd=crowd, period_s=options.period
        )
        for name, (policy, crowd, more) in kinds.items()
    }  # fmt: skip
    while min(case.now_s for case in cases.values()) < options.seconds:
        for case in cases.values():
            for _ in range(SLICE_STEPS):
                if case.now_s < options.seconds:
                    case.step()
    print(f"{'':40}{'B p50 ms':>10}{'p99 ms':>10}{'/ alone':>9}{'tokens/s':>10}{'/ fcfs':>8}")
    alone_s = percentile(cases["alone"].times_s(), 0.99)
    for name, case in cases.items():
        p50_s, p99_s = statistics.median(case.times_s()), percentile(case.times_s(), 0.99)
        columns = f"{1e3 * p50_s:10.2f}{1e3 * p99_s:10.2f}{p99_s / alone_s:9.2f}"
        print(f"{name[-40:]:40}{columns}{case.rate:10.1f}{case.rate / cases['fcfs'].rate:8.3f}")


if __name__ == "__main__":
    main()
