"""Several models in one server: a mixed load with idle unloading, and what the gateway costs.

The load: 16 clients of all dialects over two models; in turns both are asked for, the first alone,
both, the second alone, so that each is unloaded and loaded again; no request may fail, and at the
end memory is back at the level of one model. The cost: the same requests through the gateway and to
the model's own socket, in turns; --before names another source tree, whose gateway takes part. Uses
the bundled demo model twice. Run with PYTHONPATH=core:plugins:kernels from the repository root:
python benchmarks/several_models.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

import mixed_clients
import psutil
from foundation import ROOT, resident_bytes, serving
from loads import complete, percentile, run_level

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

CLIENTS = 16
PART_S = 10.0
IDLE_S = 4.0
SETTLE_S = 12.0
WARM_REQUESTS = 1000
ROUNDS = 10
MIB = 2**20
COST_LEVELS = ((1, 6), (16, 48))
"""(requests at once, requests) of a round."""


def body_of(model: str, random: Random, new_tokens: int = 32) -> dict[str, object]:
    """Return a completion of a random prompt."""
    prompt = [random.randrange(1000) for _ in range(32)]
    return {"model": model, "prompt": prompt, "max_tokens": new_tokens, "ignore_eos": True}


def model_asked_for(now_s: float, random: Random) -> str:
    """Return the model of a request so many seconds after the start."""
    asked = ("ab", "a", "ab", "b")[int(now_s / PART_S) % 4]
    return random.choice(asked)


def figures(url: str) -> dict[str, float]:
    """Return the gateway's counters of loads and unloads."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    wanted = [
        line
        for line in lines
        if line.startswith(("dovetail:gateway_loads_total{", "dovetail:gateway_unloads_total{"))
    ]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in wanted}


def warmed_bytes(url: str, process: psutil.Process) -> int:
    """Return the memory of the server after many requests to the first model."""
    warm = [body_of("a", Random(number)) for number in range(WARM_REQUESTS)]
    asyncio.run(run_level(url, warm, CLIENTS))
    return resident_bytes(process)


def run_load(url: str, process: psutil.Process, seconds: float) -> None:
    """Load the server and print what became of it."""
    one = warmed_bytes(url, process)
    asyncio.run(complete(url, body_of("b", Random(0))))
    asyncio.run(complete(url, body_of("a", Random(0))))
    two = resident_bytes(process)
    outcome = asyncio.run(mixed_clients.run(url, CLIENTS, seconds, model_asked_for))
    print(f"{outcome.counts.total()} requests in {seconds:g} s, {len(outcome.failed)} failed")
    for fault in outcome.failed[:5]:
        print(f"  {fault}")
    for sort, count in sorted(outcome.counts.items()):
        print(f"  {sort}: {count}")
    first_ms = [1e3 * percentile(outcome.first_s, share) for share in (0.5, 0.99, 1.0)]
    print("first byte, ms: p50 {:.0f}, p99 {:.0f}, max {:.0f}".format(*first_ms))
    for name, value in figures(url).items():
        print(f"  {name} {value:g}")
    time.sleep(SETTLE_S)
    end = warmed_bytes(url, process)
    print(
        f"memory, MiB: one model {one / MIB:.0f}, two {two / MIB:.0f}, at the end {end / MIB:.0f}"
    )


def socket_of(process: psutil.Process) -> str:
    """Return the address of the first model's own socket."""
    for child in process.children():
        for connection in child.net_connections(kind="unix"):
            if "dovetail-model-" in str(connection.laddr):
                return f"unix:{connection.laddr}"
    raise SystemExit("no model's server has a socket.")


def run_cost(servers: Mapping[str, tuple[str, psutil.Process]]) -> None:
    """Print times through each gateway and without it, taken in turns."""
    ways = {}
    for label, (url, process) in servers.items():
        ways |= {f"{label} direct": socket_of(process), f"{label} gateway": url}
    for concurrency, count in COST_LEVELS:
        first: dict[str, list[float]] = {way: [] for way in ways}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(-1, ROUNDS):
            turn = number % len(ways)
            for way, address in [*list(ways.items())[turn:], *list(ways.items())[:turn]]:
                random = Random(number)
                bodies = [body_of("a", random, 64) for _ in range(count)]
                seconds, timings = asyncio.run(run_level(address, bodies, concurrency))
                if number >= 0:  # the first round warms up
                    first[way] += [one.events_s[0] - one.start_s for one in timings]
                    rates[way].append(sum(one.tokens for one in timings) / seconds)
        for way in ways:
            print(
                f"{concurrency} at once, {way}: first token {percentile(first[way], 0.5) * 1e3:.1f}"
                f" ms, {statistics.median(rates[way]):.0f} tokens/s"
            )
        for label in servers:
            pairs = zip(rates[f"{label} gateway"], rates[f"{label} direct"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"  tokens/s, {label} gateway of direct: {ratio:.3f}")


def main() -> None:
    """Print the figures of both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the load; 0: no load")
    parser.add_argument("--before", type=Path, help="source tree of another gateway")
    parser.add_argument("--no-cost", action="store_true", help="measure no cost")
    told = parser.parse_args()
    if told.seconds:
        with ExitStack() as stack:
            run_load(*gateway(stack, idle_after_s=IDLE_S), told.seconds)
    if not told.no_cost:
        with ExitStack() as stack:
            trees = {"before": told.before, "now": ROOT} if told.before else {"now": ROOT}
            run_cost({label: gateway(stack, tree) for label, tree in trees.items()})


def gateway(
    stack: ExitStack, tree: Path = ROOT, idle_after_s: float = 0.0
) -> tuple[str, psutil.Process]:
    """Return address and process of a tree's server of the models a, loaded at the start, and b."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    second = {"load": "at_first_use"}
    rows = [
        {"model": str(DEMO_PATH), "served_model_name": [label], **more}
        for label, more in (("a", {}), ("b", second))
    ]
    file = folder / "models.yaml"
    file.write_text(json.dumps({"models": rows}))  # JSON is YAML too
    flags = ["--models", str(file), "--kv-cache-memory-bytes", "64M", "--idle-after-s"]
    flags += [str(idle_after_s), "--disable-uvicorn-access-log"]
    url, _, process = stack.enter_context(serving(flags, folder / "log", tree))
    return url, process


if __name__ == "__main__":
    main()
