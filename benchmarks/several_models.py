"""Several models in one server: a mixed load with idle unloading, and what the gateway costs.

The load: 16 clients over two models, one of which nobody asks for in every other part of the time,
so that it is unloaded and loaded again; no request may fail, and at the end memory is back at the
level of one model. The cost: the same requests through the gateway and to the model's own socket,
in turns. Uses the bundled demo model twice. Run on a quiet machine with
PYTHONPATH=core:plugins:kernels from the repository root: python benchmarks/several_models.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from random import Random

import psutil
from foundation import resident_bytes, serving
from loads import Timing, complete, percentile, run_level

from dovetail.config.checkpoint.model_path import DEMO_PATH

CLIENTS = 16
PART_S = 7.5
IDLE_S = 2.5
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


async def mixed_load(url: str, seconds: float) -> list[Timing]:
    """Return the timings of all clients' requests."""
    start_s = time.monotonic()
    timings: list[Timing] = []

    async def client(number: int) -> None:
        random = Random(number)
        while (now_s := time.monotonic() - start_s) < seconds:
            is_second_asked = int(now_s / PART_S) % 2 == 0
            model = "b" if is_second_asked and random.random() < 0.5 else "a"
            timings.append(await complete(url, body_of(model, random)))

    await asyncio.gather(*map(client, range(CLIENTS)))
    return timings


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


def run_load(url: str, process: psutil.Process, seconds: float) -> None:
    """Load the server and print what became of it."""
    warm = [body_of("a", Random(number)) for number in range(WARM_REQUESTS)]
    asyncio.run(run_level(url, warm, CLIENTS))
    one = resident_bytes(process)
    asyncio.run(complete(url, body_of("b", Random(0))))
    two = resident_bytes(process)
    timings = asyncio.run(mixed_load(url, seconds))
    failed = [timing.error for timing in timings if timing.error]
    first_s = [timing.events_s[0] - timing.start_s for timing in timings if timing.events_s]
    print(f"{len(timings)} requests in {seconds:g} s, {len(failed)} failed {failed[:1]}")
    print(
        f"first token, ms: p50 {percentile(first_s, 0.5) * 1e3:.0f}, "
        f"p99 {percentile(first_s, 0.99) * 1e3:.0f}, max {max(first_s) * 1e3:.0f}"
    )
    for name, value in figures(url).items():
        print(f"  {name} {value:g}")
    time.sleep(SETTLE_S)
    asyncio.run(complete(url, body_of("a", Random(0))))
    end = resident_bytes(process)
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


def run_cost(url: str, process: psutil.Process) -> None:
    """Print times through the gateway and without it, taken in turns."""
    ways = {"direct": socket_of(process), "gateway": url}
    for concurrency, count in COST_LEVELS:
        first: dict[str, list[float]] = {way: [] for way in ways}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(-1, ROUNDS):
            order = list(ways.items())[:: 1 if number % 2 else -1]
            for way, address in order:
                random = Random(number)
                bodies = [body_of("a", random, 64) for _ in range(count)]
                seconds, timings = asyncio.run(run_level(address, bodies, concurrency))
                if number >= 0:  # the first round warms up
                    first[way] += [one.events_s[0] - one.start_s for one in timings]
                    rates[way].append(sum(one.tokens for one in timings) / seconds)
        ratios = [a / b for a, b in zip(rates["gateway"], rates["direct"], strict=True)]
        for way in ways:
            print(
                f"{concurrency} at once, {way}: first token {percentile(first[way], 0.5) * 1e3:.1f}"
                f" ms, {statistics.median(rates[way]):.0f} tokens/s"
            )
        print(f"  tokens/s, gateway of direct: {statistics.median(ratios):.3f}")


def main() -> None:
    """Print the figures of both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "models.yaml"
        second = {"load": "at_first_use", "idle_after_s": IDLE_S}
        rows = [
            {"model": str(DEMO_PATH), "served_model_name": [label], **more}
            for label, more in (("a", {}), ("b", second))
        ]
        file.write_text(json.dumps({"models": rows}))  # JSON is YAML too
        flags = ["--models", str(file), "--kv-cache-memory-bytes", "64M"]
        with serving([*flags, "--disable-uvicorn-access-log"], Path(name) / "log") as (
            url,
            _,
            process,
        ):
            run_load(url, process, seconds)
            run_cost(url, process)


if __name__ == "__main__":
    main()
