"""What eight clients that send texts of 15 MB do to everybody else.

`python benchmarks/flood.py [--tree FOLDER ...]` starts the server of each source tree (this one if
none is named; for a figure "before", name a `git worktree` of an earlier commit first), and
measures it quiet and under the flood, in one run: the latency of /health, the time between the
tokens of one stream, the memory of the HTTP process and of its children before, during and after.
The flooding clients run at the lowest priority, because they would be other machines.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

NUM_CLIENTS = 8
TEXT_BYTES = 15_000_000
PROBE_PERIOD_S = 0.02
START_LIMIT_S = 120.0
PATIENCE_S = 10.0
REST_S = 30.0
"""After the flood, until memory is read: what is idle has ended by then."""

WORDS = "ab "
ENGLISH = "The quick brown fox jumps over the lazy dog, and 42 others do so \u201ctoo\u201d.\n"


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Return the path and body of each client."""
    words = WORDS * (TEXT_BYTES // len(WORDS))
    english = ENGLISH * (TEXT_BYTES // len(ENGLISH))
    one = TEXT_BYTES // 64
    turn = [{"role": "user", "content": english}]
    short: dict[str, Any] = {"max_tokens": 8}
    return [
        ("/v1/completions", {"prompt": words, **short}),
        ("/v1/completions", {"prompt": english, "truncate_prompt_tokens": 64, **short}),
        ("/v1/completions", {"prompt": [english[:one]] * 64, **short}),
        ("/v1/chat/completions", {"messages": turn, **short}),
        ("/v1/messages", {"messages": turn, "model": "demo", **short}),
        ("/v1/responses", {"input": words, "max_output_tokens": 8}),
        ("/tokenize", {"prompt": words}),
        ("/tokenize", {"prompt": english}),
    ][:NUM_CLIENTS]


@dataclass(slots=True)
class Figures:
    """What was seen in one phase; times in milliseconds."""

    health_ms: list[float] = field(default_factory=list)
    token_ms: list[float] = field(default_factory=list)
    memory_mib: float = 0.0
    children_mib: float = 0.0


class Watch:
    """Probes /health and reads a stream, in two threads, until stopped."""

    def __init__(self, port: int) -> None:
        self.figures = Figures()
        self._port = port
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), daemon=True)
            for loop in (self._probe, self._stream)
        ]
        self._probed_s = self._token_s = 0.0

    def run(self, seconds: float) -> Figures:
        """Return what was seen in so many seconds."""
        for thread in self._threads:
            thread.start()
        time.sleep(seconds)
        self._ends.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if self._threads[0].is_alive():  # it waits still: as long as that at the least
            self.figures.health_ms.append(1e3 * (time.perf_counter() - self._probed_s))
        if self._threads[1].is_alive() and self._token_s:
            self.figures.token_ms.append(1e3 * (time.perf_counter() - self._token_s))
        return self.figures

    def _run(self, loop: Callable[[], None]) -> None:
        while not self._ends.is_set():
            loop()

    def _probe(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        while not self._ends.is_set():
            self._probed_s = started_s = time.perf_counter()
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
            self.figures.health_ms.append(1e3 * (time.perf_counter() - started_s))
            time.sleep(PROBE_PERIOD_S)

    def _stream(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        body = {"prompt": "Once", "stream": True, "max_tokens": 400, "ignore_eos": True}
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        last_s, self._token_s = None, time.perf_counter()
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            now_s = time.perf_counter()
            if last_s is not None:
                self.figures.token_ms.append(1e3 * (now_s - last_s))
            last_s = self._token_s = now_s
            if self._ends.is_set():
                break
        connection.close()


@contextmanager
def served(tree: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Give the port and the HTTP process of a tree's server with the demo model."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    paths = [str(tree / name) for name in ("core", "plugins", "kernels")]
    model = tree / "core/dovetail/demo_model"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "serve", str(model), "--port", str(port)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            cwd=tree,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_ready(port)
            yield port, process
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode()[-4000:])
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its children, even one that hears no signal."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    for left in psutil.wait_procs(family, timeout=10)[1]:
        left.kill()
    process.wait()


def _wait_until_ready(port: int) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start")


def flood(port: int, seconds: float) -> None:
    """Send, from one thread per client, one body after the other; print what was answered."""
    os.nice(19)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    until_s = time.monotonic() + seconds
    statuses: dict[str, int] = {}
    threads = [
        threading.Thread(target=_client, args=(port, path, body, until_s, statuses))
        for path, body in bodies()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _client(port: int, path: str, body: Any, until_s: float, statuses: dict[str, int]) -> None:
    data = json.dumps(body, ensure_ascii=False).encode()
    while time.monotonic() < until_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        while response.read(1 << 20):
            pass
        connection.close()
        key = f"{path} {response.status}"
        statuses[key] = statuses.get(key, 0) + 1
        print(json.dumps(statuses), flush=True)


def measure(tree: Path, seconds: float) -> tuple[Figures, Figures, str]:
    """Return the figures of a quiet server and of a flooded one, and what the flood was told."""
    with served(tree) as (port, process):
        Watch(port).run(2.0)  # warm
        quiet = Watch(port).run(seconds / 2)
        quiet.memory_mib, quiet.children_mib = _memory(process.pid)
        command = [sys.executable, __file__, "--flood", str(port), "--seconds", str(seconds)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE)
        time.sleep(1.0)  # the clients write their bodies first
        flooded = Watch(port).run(seconds)
        flooded.children_mib = _memory(process.pid)[1]
        client.kill()
        answers = (client.communicate()[0].decode().splitlines() or ["none"])[-1]
        time.sleep(REST_S)
        flooded.memory_mib = _memory(process.pid)[0]
        return quiet, flooded, answers


def _memory(pid: int) -> tuple[float, float]:
    """Return the resident MiB of a process, and of all its children."""
    process = psutil.Process(pid)
    children = [child.memory_info().rss for child in process.children(recursive=True)]
    return process.memory_info().rss / 2**20, sum(children) / 2**20


def _p(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else float("nan")


def report(tree: Path, quiet: Figures, flooded: Figures, answers: str) -> None:
    """Print one tree's rows."""
    print(f"\n{tree}\nanswers to the flood: {answers}")
    head = "/health p50, p99, max ms | tokens p50, p99, max ms | HTTP MiB"
    print(f"| phase | {head} | children MiB |")
    for name, seen in (("quiet", quiet), ("flood", flooded)):
        health, tokens = seen.health_ms, seen.token_ms
        print(
            f"| {name} "
            f"| {_p(health, 50):.1f}, {_p(health, 99):.1f}, {max(health):.1f} "
            f"| {_p(tokens, 50):.1f}, {_p(tokens, 99):.1f}, {max(tokens, default=0):.1f} "
            f"| {seen.memory_mib:.0f} | {seen.children_mib:.0f} |"
        )
    ratio = _p(flooded.token_ms, 99) / _p(quiet.token_ms, 99)
    print(f"time between tokens, p99: {ratio:.2f} times that of the quiet server", flush=True)


def main(argv: Sequence[str]) -> int:
    """Measure the trees in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--tree", type=Path, action="append", help="source tree to serve")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the flood")
    parser.add_argument("--flood", type=int, metavar="PORT", help="only be the flooding clients")
    told = parser.parse_args(argv)
    if told.flood:
        flood(told.flood, told.seconds)
        return 0
    for tree in told.tree or [here]:
        report(tree, *measure(tree.resolve(), told.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
