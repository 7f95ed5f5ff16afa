"""One owner's crowd and another's single requests: what the policy `fair` changes.

A has --crowd long requests open all the time, B sends a short request each second. Printed are B's
times to the first token (median and 99th percentile) alone, under fcfs and under fair, and the
throughput of the server in tokens per second and per second of processor time. A's client is a
process of its own: what it does with an answer must not hold up B's clock. Its answers come whole,
since a client that reads hundreds of streams on the same machine takes a processor for itself;
--stream has them streamed. The servers run one after another, in --rounds rounds. Uses the bundled
demo model. Run with
PYTHONPATH=core:plugins:kernels from the repository root: python benchmarks/fairness.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import psutil
from foundation import processor_s, serving
from loads import percentile

OWNER = "x-owner"
FLAGS = ("--owner-header", OWNER, "--max-num-queued-reqs", "4096")
SHORT = {"prompt_tokens": (24, 24), "max_tokens": (8, 8)}
LONG = {"prompt_tokens": (100, 300), "max_tokens": (200, 400)}
"""The least and the most. Answers of one length would end in the same step for ever."""
WARM_S = 3.0
WARM_REQUESTS = 5
"""The first requests of a server pay for what is made once."""
PERIOD_S = 1.0
CROWD_NICE = 10
"""A's client yields the processors: elsewhere it would run on another machine."""


@dataclass(kw_only=True)
class Phase:
    """What one server did: B's seconds to the first token, and all tokens in the window."""

    first_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    wall_s: float = 0.0
    processor_s: float = 0.0


async def ask(
    client: httpx.AsyncClient,
    owner: str,
    random: Random,
    size: dict[str, tuple[int, int]],
    *,
    stream: bool = True,
) -> float:
    """Send one request; return the seconds to its first token, or to its end without `stream`."""
    body = {
        "prompt": [random.randrange(1000) for _ in range(random.randint(*size["prompt_tokens"]))],
        "max_tokens": random.randint(*size["max_tokens"]), "ignore_eos": True, "stream": stream,
    }  # fmt: skip
    start_s, first_s = time.perf_counter(), float("inf")
    headers = {OWNER: owner}
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"status {answer.status_code}: {(await answer.aread()).decode()}")
        if not stream:
            await answer.aread()
            return time.perf_counter() - start_s
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                first_s = min(first_s, time.perf_counter() - start_s)
    return first_s


async def crowd(url: str, count: int, *, stream: bool) -> None:
    """Keep `count` long requests of A open for ever."""

    async def again(client: httpx.AsyncClient, number: int) -> None:
        random = Random(number)
        while True:
            await ask(client, "A", random, LONG, stream=stream)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        await asyncio.gather(*(again(client, number) for number in range(count)))


@contextmanager
def crowded(url: str, count: int, *, stream: bool) -> Iterator[None]:
    """Have A's client run meanwhile, in a process, if there is a crowd."""
    if not count:
        yield
        return
    words = [sys.executable, __file__, "--crowd", str(count), "--be-crowd", url]
    with subprocess.Popen([*words, "--stream"] if stream else words) as client:
        try:
            yield
        finally:
            client.kill()


async def num_generated(client: httpx.AsyncClient) -> int:
    """Return the tokens that the server has generated."""
    text = (await client.get("/metrics")).text
    return int(
        sum(map(float, re.findall(r"^dovetail:generation_tokens_total\S* (\S+)", text, re.M)))
    )


async def measured(url: str, process: psutil.Process, seconds: float) -> Phase:
    """Return what a server does with B's requests, and with A's meanwhile."""
    phase, random = Phase(), Random(7)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        for _ in range(WARM_REQUESTS):
            await ask(client, "B", random, SHORT)
        await asyncio.sleep(WARM_S)
        before, start_s = await num_generated(client), time.perf_counter()
        used_s = processor_s(process)
        asked = []
        while time.perf_counter() - start_s < seconds:
            asked.append(asyncio.ensure_future(ask(client, "B", random, SHORT)))
            await asyncio.sleep(PERIOD_S)
        phase.wall_s = time.perf_counter() - start_s
        phase.processor_s = processor_s(process) - used_s
        phase.num_tokens = await num_generated(client) - before
        waited = time.perf_counter()
        done, open_ = await asyncio.wait(asked, timeout=seconds)
        late_s = time.perf_counter() - waited
        phase.first_s = [one.result() for one in done] + [seconds + late_s for _ in open_]
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)
    return phase


def phase_of(policy: str, count: int, options: argparse.Namespace) -> Phase:
    """Return what a fresh server under a policy does."""
    rows = ["--max-num-seqs", str(options.rows), "--scheduling-policy", policy]
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        url, _, process = stack.enter_context(serving([*FLAGS, *rows], log))
        stack.enter_context(crowded(url, count, stream=options.stream))
        return asyncio.run(measured(url, process, options.seconds))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crowd", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--stream", action="store_true", help="stream A's answers, too")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--be-crowd", metavar="URL", help="be A's client of this server")
    options = parser.parse_args()
    if options.be_crowd:
        os.nice(CROWD_NICE)
        asyncio.run(crowd(options.be_crowd, options.crowd, stream=options.stream))
        return
    cases = {"alone": ("fcfs", 0), "fcfs": ("fcfs", options.crowd), "fair": ("fair", options.crowd)}
    phases: dict[str, list[Phase]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, (policy, count) in cases.items():
            phases[name].append(phase_of(policy, count, options))
    print(f"{'':8}{'B p50 ms':>12}{'B p99 ms':>12}{'tokens/s':>12}{'tokens/cpu s':>14}")
    for name, found in phases.items():
        first = [s * 1000 for phase in found for s in phase.first_s]
        rate, work = rates(found)
        columns = f"{statistics.median(first):12.1f}{percentile(first, 0.99):12.1f}"
        print(f"{name:8}{columns}{rate:12.1f}{work:14.1f}")
    (fair, fair_work), (fcfs, fcfs_work) = rates(phases["fair"]), rates(phases["fcfs"])
    print(f"throughput fair / fcfs: {fair / fcfs:.3f}, per cpu second {fair_work / fcfs_work:.3f}")


def rates(found: list[Phase]) -> tuple[float, float]:
    """Return the medians of tokens per second and per second of processor time."""
    rate = statistics.median(phase.num_tokens / phase.wall_s for phase in found)
    return rate, statistics.median(phase.num_tokens / phase.processor_s for phase in found)


if __name__ == "__main__":
    main()
