"""Restarts: an engine is killed again and again under load, and every request is accounted for.

A server has two engines and two API processes. Sixteen clients ask it, half of them for streams,
while the two engines are killed in turns. Each answer is compared with the answer to the same
request before the first kill. Only a stream that has begun may end with an error. Afterwards both
engines must be alive, and the server must not have more processes, threads, descriptors, folders in
TMPDIR or segments in /dev/shm than before.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.restarts [--minutes 10] [--every 10]
    PYTHONPATH=core:plugins:kernels python -m benchmarks.restarts --rounds 100

With `--rounds` no engine is killed: in each round one is drained and added again, the two in turns,
and then no request at all may fail.

The exit status is 1 if a request was lost, answered otherwise, or never ended, or if something
leaks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.faults import API, ENGINE, Family, free_port

NUM_CLIENTS = 16
NUM_PROMPTS = 12
NEW_TOKENS = 60
START_LIMIT_S = 120.0
REQUEST_LIMIT_S = 120.0
"""A request that has not ended by then never does."""
FINE = ("answered", "lost after it had begun")
"""How requests may end where engines are killed."""
DRAIN_S = 60.0


class Client:
    """Asks one prompt after another, and counts how the requests end."""

    def __init__(self, http: httpx.AsyncClient, number: int, wanted: list[str]) -> None:
        self._http = http
        self._number = number
        self._wanted = wanted
        self.ends: Counter[str] = Counter()
        self.longest_s = 0.0
        self.errors: Counter[str] = Counter()

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Ask until it is over. Mutates: self"""
        for turn in itertools.count():
            begun_s = time.monotonic()
            if is_over():
                return
            prompt = (self._number + turn) % NUM_PROMPTS
            ask = streamed if self._number % 2 else whole
            try:
                async with asyncio.timeout(REQUEST_LIMIT_S):
                    text, error, has_begun = await ask(self._http, prompt)
            except TimeoutError:
                self.ends["never ended"] += 1
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            if error:
                self.errors[error] += 1
                self.ends["lost after it had begun" if has_begun else "lost"] += 1
            else:
                is_same = not self._wanted or text == self._wanted[prompt]
                self.ends["answered" if is_same else "answered otherwise"] += 1


Answer = tuple[str, str, bool]
"""A text, the error that ended it ("": none), and whether the client has had a part of it."""


def body_of(prompt: int, **fields: Any) -> dict[str, Any]:
    """Return a request whose answer is drawn, and always the same."""
    usual = {"prompt": f"{prompt} x", "max_tokens": NEW_TOKENS, "ignore_eos": True, "seed": prompt}
    return usual | fields


async def whole(http: httpx.AsyncClient, prompt: int) -> Answer:
    """Return an answer that comes as one message."""
    try:
        answer = await http.post("/v1/completions", json=body_of(prompt))
    except httpx.HTTPError as error:
        return "", f"{type(error).__name__}: {error}", False
    if answer.status_code != 200:
        return "", answer.text, False
    return answer.json()["choices"][0]["text"], "", False


async def streamed(http: httpx.AsyncClient, prompt: int) -> Answer:
    """Return an answer that comes piece by piece."""
    text, is_over, has_begun = "", False, False
    try:
        async with http.stream(
            "POST", "/v1/completions", json=body_of(prompt, stream=True)
        ) as answer:
            if answer.status_code != 200:
                return "", (await answer.aread()).decode(), False
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    is_over = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return text, str(event["error"]["message"]), has_begun
                    text += event["choices"][0]["text"]
                    has_begun = True
    except httpx.HTTPError as error:
        return text, f"{type(error).__name__}: {error}", has_begun
    return text, "" if is_over else "cut off", has_begun


def size_of(server: Family) -> dict[str, int]:
    """Return what the server has: descriptors and threads of the main and the API processes."""
    members = [server.root, *server.of(API)]
    return {
        "processes": len(server.members()),
        "descriptors": sum(one.num_fds() for one in members),
        "threads": sum(one.num_threads() for one in members),
    }


def left_in(folder: Path) -> list[str]:
    """Return the folders of sockets and the segments of shared memory."""
    memory = Path("/dev/shm")
    names = [f"/dev/shm/{one.name}" for one in memory.iterdir()] if memory.is_dir() else []
    return sorted([*names, *(str(one) for one in (folder / "tmp").iterdir())])


async def kill_some(server: Family, every_s: float, minutes: float) -> str:
    """Kill one engine after the other; return how many."""
    until_s = time.monotonic() + 60 * minutes
    for number in itertools.count():
        await asyncio.sleep(every_s)
        if time.monotonic() > until_s:
            return f"{number} engines killed in {minutes:g} minutes"
        engines = server.of(ENGINE)
        if engines:
            engines[0].kill()  # the eldest, so they take turns
    raise AssertionError("it counts for ever")


async def drain_some(http: httpx.AsyncClient, rounds: int) -> str:
    """Drain and add one engine after the other; return how often, and how long that took."""
    drains_s, adds_s = [], []
    for turn in range(rounds):
        for path, took_s in (("drain", drains_s), ("add", adds_s)):
            body = {"engine": turn % 2} | ({"timeout": DRAIN_S} if path == "drain" else {})
            begun_s = time.monotonic()
            answer = await http.post(f"/engines/{path}", json=body)
            took_s.append(time.monotonic() - begun_s)
            assert answer.status_code == 200, answer.text
    means = f"mean {sum(drains_s) / rounds:.1f} s and {sum(adds_s) / rounds:.1f} s"
    longest = f"at most {max(drains_s):.1f} s and {max(adds_s):.1f} s"
    return f"{rounds} engines drained and added again, {means}, {longest}"


async def all_up(http: httpx.AsyncClient) -> dict[str, Any]:
    """Return what /health says once both engines are alive."""
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            with contextlib.suppress(httpx.HTTPError):
                told: dict[str, Any] = (await http.get("/health")).json()
                if told.get("status") == "ok":
                    return told
            await asyncio.sleep(0.1)


async def measure(server: Family, url: str, folder: Path, given: argparse.Namespace) -> bool:
    """Print what happened; return whether nothing was lost and nothing leaks."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_LIMIT_S, limits=limits) as http:
        await all_up(http)
        wanted = [(await whole(http, prompt))[0] for prompt in range(NUM_PROMPTS)]
        warm = [Client(http, number, wanted) for number in range(NUM_CLIENTS)]
        warm_s = time.monotonic() + 3
        await asyncio.gather(*(one.run(lambda: time.monotonic() > warm_s) for one in warm))
        before, left_before = size_of(server), left_in(folder)
        clients = [Client(http, number, wanted) for number in range(NUM_CLIENTS)]
        disturbs = (
            drain_some(http, given.rounds)
            if given.rounds
            else kill_some(server, given.every, given.minutes)
        )
        disturbing = asyncio.create_task(disturbs)
        await asyncio.gather(*(one.run(disturbing.done) for one in clients))
        done = await disturbing
        told = await all_up(http)
        await asyncio.sleep(3)  # connections that end
        after, left_after = size_of(server), left_in(folder)
    ends = sum((one.ends for one in clients), Counter[str]())
    print(f"{done}; restarts:", _restarts(told))
    print(f"requests: {ends.total()}:", ", ".join(f"{n} {end}" for end, n in ends.most_common()))
    print(f"longest request: {max(one.longest_s for one in clients):.1f} s")
    for error, count in sum((one.errors for one in clients), Counter[str]()).most_common(6):
        print(f"  {count} x {error[:150]}")
    print("before:", before, "after:", after)
    new = sorted(set(left_after) - set(left_before))
    print("new files:", new or "none")
    grown = {name for name in after if after[name] > before[name] + 4}
    fine = {"answered"} if given.rounds else set(FINE)
    return not (set(ends) - fine) and not new and not grown


def _restarts(told: dict[str, Any]) -> list[int]:
    return [one.get("restarts", 0) for one in told["engines"]]


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills")
    parser.add_argument("--rounds", type=int, default=0, help="drain and add this often instead")
    parser.add_argument("--log", action="store_true", help="print the server's log at the end")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="restarts-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        port = free_port()
        words = [
            "--port", str(port), "--data-parallel-size", "2", "--api-server-count", "2",
            "--cpu-cores", "nobind", "--max-model-len", "512", "--max-engine-restarts", "100000",
            "--enable-dev-endpoints",
        ]  # fmt: skip
        env = dict(os.environ) | {"TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
        server = Family(words, env, folder / "log")
        try:
            url = f"http://127.0.0.1:{port}"
            is_good = asyncio.run(measure(server, url, folder, given))
            server.process.terminate()
            status = server.process.wait(60)
            rest = [one.pid for one in server.members()]
            files = {one.name for one in (folder / "tmp").iterdir()} - {f"dovetail-{os.getuid()}"}
            print(
                "exit status:",
                status,
                "processes left:",
                rest or "none",
                "files left:",
                files or "none",
            )
            is_good = is_good and not (status or rest or files)
        finally:
            if given.log:
                print((folder / "log").read_text())
            server.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
