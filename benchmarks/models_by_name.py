"""16 clients ask for six small models in random order; two models may be loaded at a time.

    PYTHONPATH=core:plugins:kernels python benchmarks/models_by_name.py [--minutes 10]

The server (`dovetail serve --models any --max-loaded-models 2`) is a process of its own, and
answers are streamed. There are three runs: random order; the worst order, where each request names
another model than the one before; random order again, while model processes are killed, one model
cannot be loaded and one is deleted from the disk. Each run prints its requests by how they ended,
swaps a minute, and the time to the first token. Only the last run may have failures. At the end
comes the memory of all processes, before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from dovetail_testing.tiny.models import write_tiny_checkpoint, write_tiny_tokenizer

NUM_MODELS, NUM_CLIENTS, NUM_LOADED = 6, 16, 2
BROKEN, DELETED = "broken", "deleted"
TOKENS = 32


@dataclass
class Tally:
    """What became of the requests."""

    kinds: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)


def write_models(folder: Path) -> None:
    """Write the small models, and one whose weights are cut."""
    for name in [*(f"m{i}" for i in range(NUM_MODELS)), BROKEN, DELETED]:
        write_tiny_checkpoint(folder / name, "LlamaForCausalLM", num_hidden_layers=2)
        write_tiny_tokenizer(folder / name)
    weights = folder / BROKEN / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


async def ask(client: httpx.AsyncClient, model: str, tally: Tally) -> None:
    """Stream one answer; note how long its first token took, and how it ended. Mutates: tally"""
    body = {"model": model, "prompt": "once upon", "max_tokens": TOKENS, "stream": True}
    began_s, first_s, end = time.monotonic(), None, "cut"
    try:
        async with client.stream("POST", "/v1/completions", json=body | {"seed": 1}) as answer:
            if answer.status_code != 200:
                tally.kinds[f"status {answer.status_code}"] += 1
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and first_s is None:
                    first_s = time.monotonic() - began_s
                if line == "data: [DONE]":
                    end = "whole"
                elif '"error"' in line:
                    end = "error event"
                    break
    except httpx.HTTPError as error:
        end = type(error).__name__
    tally.kinds[end] += 1
    if end == "whole" and first_s is not None:
        tally.waits_s.append(first_s)


async def clients(url: str, seconds: float, choose: Callable[[], str], num: int) -> Tally:
    """Ask with several clients until the time is over."""
    tally, end_s = Tally(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one() -> None:
            while time.monotonic() < end_s:
                await ask(client, choose(), tally)

        await asyncio.gather(*(one() for _ in range(num)))
    return tally


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def memory_mib(pid: int) -> float:
    """Return the memory of a process and its children."""
    own = [psutil.Process(pid), *children(pid)]
    return sum(one.memory_info().rss for one in own) / 2**20


async def killer(pid: int, period_s: float, kills: list[int]) -> None:
    """Kill a child of the server now and then. Mutates: kills"""
    chance = random.Random(1)
    while True:
        await asyncio.sleep(period_s)
        found = [one for one in psutil.Process(pid).children() if one.is_running()]
        if found:
            chance.choice(found).send_signal(signal.SIGKILL)
            kills.append(1)


def swaps(url: str) -> int:
    """Return how many models have been loaded so far."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    lines = [x for x in text.splitlines() if x.startswith("dovetail:gateway_loads_total{")]
    return int(sum(float(x.rsplit(" ", 1)[1]) for x in lines if 'how="loaded"' in x))


def shown(name: str, tally: Tally, seconds: float, num_swaps: int) -> None:
    """Print a run's figures."""
    waits = sorted(tally.waits_s) or [float("nan")]
    p99 = waits[min(len(waits) - 1, int(0.99 * len(waits)))]
    print(
        f"{name}: {dict(tally.kinds)} in {seconds:.0f} s, {60 * num_swaps / seconds:.1f} swaps/min"
    )
    print(f"   first token: median {statistics.median(waits):.2f} s, p99 {p99:.2f} s", flush=True)


async def measured(server: subprocess.Popen[bytes], url: str, folder: Path, minutes: float) -> None:
    """Run the phases and print them."""
    chance = random.Random(0)
    names = [f"m{i}" for i in range(NUM_MODELS)]
    before = memory_mib(server.pid)
    began, start_s = swaps(url), time.monotonic()
    tally = await clients(url, minutes * 60, lambda: chance.choice(names), NUM_CLIENTS)
    shown("random order", tally, time.monotonic() - start_s, swaps(url) - began)
    began, start_s, turn = swaps(url), time.monotonic(), iter(range(10**9))
    tally = await clients(url, 60 * minutes / 4, lambda: names[next(turn) % NUM_MODELS], 3)
    shown("worst order, 3 clients", tally, time.monotonic() - start_s, swaps(url) - began)
    kills: list[int] = []
    task = asyncio.ensure_future(killer(server.pid, 8.0, kills))
    began, start_s = swaps(url), time.monotonic()
    pool = [*names, BROKEN, DELETED]
    asyncio.get_running_loop().call_later(5.0, shutil.rmtree, folder / DELETED)
    tally = await clients(url, 60 * minutes / 4, lambda: chance.choice(pool), NUM_CLIENTS)
    task.cancel()
    shown(
        f"{len(kills)} killed, one broken, one deleted",
        tally,
        time.monotonic() - start_s,
        swaps(url) - began,
    )
    tally = await clients(url, 1.0, lambda: chance.choice(names), 4)
    print(f"afterwards: {dict(tally.kinds)}")
    for name in names:
        httpx.post(f"{url}/api/generate", json={"model": name, "keep_alive": 0}, timeout=60)
    await asyncio.sleep(6)
    print(f"memory: {before:.0f} MiB before, {memory_mib(server.pid):.0f} MiB after")


def main() -> None:
    """Start the server, run, end it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "models"
        write_models(folder)
        flags = ["--models", "any", "--model-dir", str(folder), "--port", "8765"]
        flags += ["--max-loaded-models", str(NUM_LOADED), "--load-wait-s", "600"]
        with (Path(name) / "log").open("wb") as log:
            command = [sys.executable, "-m", "dovetail", "serve", *flags]
            server = subprocess.Popen(command, stdout=log, stderr=log)
        url = "http://127.0.0.1:8765"
        try:
            wait_ready(server, url)
            asyncio.run(measured(server, url, folder, args.minutes))
        finally:
            server.terminate()
            server.wait(60)
            text = (Path(name) / "log").read_text(errors="replace")
            print(json.dumps({"tracebacks in the log": text.count("Traceback")}))


def wait_ready(server: subprocess.Popen[bytes], url: str) -> None:
    while server.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
