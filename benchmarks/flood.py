"""What eight clients that send texts of 15 MB do to everybody else.

`python benchmarks/flood.py [--tree FOLDER ...]` starts the server of each source tree (this one if
none is named; for a figure "before", name a `git worktree` of an earlier commit first) and measures
it in rounds of four phases: quiet; beside a process on each processor that only counts, which is
the floor, because that is what any work costs here; under a flood from its first byte; and with a
stream that begins within a flood. In each: the latency of /health, the time between the tokens of
the stream, the memory of the HTTP process and of its children, how many MiB came in every second. A
ratio is that of a phase to the quiet phase of its round; medians of the rounds are printed, with
the least and the most. What flooding clients and the counting processes do has the lowest priority,
because clients would be other machines.
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
from foundation import processor_s

NUM_CLIENTS = 8
TEXT_BYTES = 15_000_000
PART_BYTES = 1 << 16
PROBE_PERIOD_S = 0.02
SETTLE_S = 1.0
"""How long a stream has run before what is measured begins."""
FLOODED_S = 3.0
"""How long a flood has run before the stream begins that is in it from its start."""
START_LIMIT_S = 120.0
PATIENCE_S = 10.0
PAUSE_S = 3.0
"""Between the phases: what a flood has begun has ended by then."""
REST_S = 30.0
"""After the last flood, until memory is read: what is idle has ended by then."""

PHASES = ("quiet", "counting", "flood", "flooded")
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
    children_mib: float = 0.0
    sent_mib_s: float = 0.0
    """What came to the server."""
    others: float = 0.0
    """Processors that were taken by what does not belong to this measurement."""


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

    def start(self) -> None:
        """Begin, and wait until the stream runs."""
        for thread in self._threads:
            thread.start()
        time.sleep(SETTLE_S)

    def run(self, seconds: float) -> Figures:
        """Return what is seen in so many seconds from now."""
        self.figures = Figures()
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
    _step_back()
    until_s = time.monotonic() + seconds
    statuses: dict[str, int] = {}
    threads = [
        threading.Thread(target=_client, args=(port, path, data, until_s, statuses))
        for path, data in [
            (path, json.dumps(body, ensure_ascii=False).encode()) for path, body in bodies()
        ]
    ]
    _wait_for_start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def count(seconds: float) -> None:
    """Keep one processor busy, without memory and without a call to the system."""
    _step_back()
    _wait_for_start()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        sum(range(10_000))


def _wait_for_start() -> None:
    """Say that this process is ready, and wait until the measurement begins."""
    print("ready", flush=True)
    sys.stdin.readline()


def _step_back() -> None:
    os.nice(19)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _client(port: int, path: str, data: bytes, until_s: float, statuses: dict[str, int]) -> None:
    while time.monotonic() < until_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.connect()
        # A long write to the same machine is not interrupted, whatever its priority.
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PART_BYTES)
        parts = (data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES))
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        connection.request("POST", path, parts, headers)
        response = connection.getresponse()
        while response.read(PART_BYTES):
            pass
        connection.close()
        key = f"{path} {response.status}"
        statuses[key] = statuses.get(key, 0) + 1
        print(json.dumps(statuses), flush=True)


@dataclass(slots=True)
class Measured:
    """What one tree's server did: figures by phase, a list of rounds each; the HTTP process's MiB
    before and after."""

    phases: dict[str, list[Figures]]
    before_mib: float
    after_mib: float = 0.0
    answers: list[str] = field(default_factory=list)


def measure(tree: Path, num_rounds: int, seconds: float) -> Measured:
    """Return what was seen of a quiet server, of one beside counting processes and of a flooded
    one, in turns."""
    with served(tree) as (port, process):
        _watched(port, 2.0, process.pid, [])  # warm
        found = Measured(phases={phase: [] for phase in PHASES}, before_mib=_memory(process.pid)[0])
        for _ in range(num_rounds):
            for phase in PHASES:
                with _beside(phase, port, seconds) as helpers:
                    if phase == "flooded":
                        _go(helpers)
                        time.sleep(FLOODED_S)
                    figures = _watched(port, seconds, process.pid, helpers)
                told = [helper.communicate()[0].decode().splitlines() for helper in helpers]
                if phase.startswith("flood"):
                    found.answers.append(told[0][-1] if told[0] else "none")
                found.phases[phase].append(figures)
                time.sleep(PAUSE_S)
        time.sleep(REST_S)
        found.after_mib = _memory(process.pid)[0]
        return found


@contextmanager
def _beside(phase: str, port: int, seconds: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run what belongs to a phase, and end it."""
    flags, number = {
        "quiet": ([], 0),
        "counting": (["--count"], os.cpu_count() or 1),
        "flood": (["--flood", str(port)], 1),
        "flooded": (["--flood", str(port)], 1),
    }[phase]
    command = [sys.executable, __file__, *flags, "--seconds", str(10 * seconds)]
    helpers = [
        subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(number)
    ]
    try:
        for helper in helpers:
            assert helper.stdout is not None
            assert helper.stdout.readline() == b"ready\n"
        yield helpers
    finally:
        for helper in helpers:
            helper.kill()


def _watched(
    port: int, seconds: float, pid: int, helpers: Sequence[subprocess.Popen[bytes]]
) -> Figures:
    """Start the helpers beside a stream; return what was seen from then on, with what else ran on
    the machine."""
    own, watch = psutil.Process(), Watch(port)
    watch.start()
    before, busy, sent = processor_s(own), _busy_s(), _sent_mib()
    _go(helpers)
    figures = watch.run(seconds)
    figures.sent_mib_s = (_sent_mib() - sent) / seconds
    figures.others = max(0.0, _busy_s() - busy - (processor_s(own) - before)) / seconds
    figures.children_mib = _memory(pid)[1]
    return figures


def _go(helpers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the helpers begin, if they have not yet."""
    for helper in helpers:
        assert helper.stdin is not None
        helper.stdin.write(b"\n")


def _sent_mib() -> float:
    """Return what all processes of this machine have sent to each other over the network."""
    counts = psutil.net_io_counters(pernic=True)
    return float(sum(counts[name].bytes_recv for name in counts if name.startswith("lo"))) / 2**20


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _memory(pid: int) -> tuple[float, float]:
    """Return the resident MiB of a process, and of all its children."""
    process = psutil.Process(pid)
    children = [child.memory_info().rss for child in process.children(recursive=True)]
    return process.memory_info().rss / 2**20, sum(children) / 2**20


def _p(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else float("nan")


def report(tree: Path, found: Measured) -> None:
    """Print one tree's rows."""
    print("", tree, "answers to each flood:", *found.answers, sep="\n")
    print(f"HTTP process: {found.before_mib:.0f} MiB before, {found.after_mib:.0f} after")
    head = "/health p50, p99, max ms | tokens p50, p99, max ms | tokens p99 to quiet"
    print(f"| phase | {head} | MiB/s sent | children MiB | others' processors |")
    for phase, rounds in found.phases.items():
        health, tokens = ([getattr(r, name) for r in rounds] for name in ("health_ms", "token_ms"))
        ratios = [
            _p(seen.token_ms, 99) / _p(quiet.token_ms, 99)
            for seen, quiet in zip(rounds, found.phases["quiet"], strict=True)
        ]
        print(
            f"| {phase} | {_row(health)} | {_row(tokens)} | {_spread(ratios)} "
            f"| {_spread([seen.sent_mib_s for seen in rounds])} "
            f"| {max(seen.children_mib for seen in rounds):.0f} "
            f"| {_spread([seen.others for seen in rounds])} |",
            flush=True,
        )


def _row(rounds: Sequence[Sequence[float]]) -> str:
    """Return the quantiles of each round, as medians over the rounds."""
    per_round = [(_p(seen, 50), _p(seen, 99), max(seen, default=0.0)) for seen in rounds]
    return ", ".join(_spread(column) for column in zip(*per_round, strict=True))


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(argv: Sequence[str]) -> int:
    """Measure the trees in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--tree", type=Path, action="append", help="source tree to serve")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=5, help="how often the phases take turns")
    parser.add_argument("--flood", type=int, metavar="PORT", help="only be the flooding clients")
    parser.add_argument("--count", action="store_true", help="only keep a processor busy")
    told = parser.parse_args(argv)
    if told.flood:
        flood(told.flood, told.seconds)
        return 0
    if told.count:
        count(told.seconds)
        return 0
    for tree in told.tree or [here]:
        report(tree, measure(tree.resolve(), told.rounds, told.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
