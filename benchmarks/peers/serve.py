"""dovetail's server beside llama.cpp's and vLLM's: start-up, latency, throughput, memory.

`python -m benchmarks.peers.serve --models DIR --venvs DIR --peers xllamacpp-q8_0 vllm-bf16 --server
"dovetail: "`.
Every round starts each server in turn (A B C A B C), times it from the process's start to the first
completion answered with 200, sends closed loops of streamed requests (128 tokens in, 32 out, 16 a
level) at each concurrency, reads its memory and stops it. One JSON line a level goes to --out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.loads import Timing, run_level
from benchmarks.peers.machine import Window, family, resident_bytes, wait_quiet
from benchmarks.peers.prompts import PromptMaker
from benchmarks.peers.report import Row, middle, ordered, percentile
from benchmarks.peers.servers import SERVERS, Server, dovetail_server

NUM_PROMPT = 128
START_LIMIT_S = 400.0


class ServerFailed(Exception):
    """The server ended, or answered no completion in time."""


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_answering(url: str, body: Row) -> bool:
    """Return whether a completion is answered with 200."""
    request = urllib.request.Request(
        url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def peak_bytes(pid: int) -> int:
    """Return the sum of the largest resident sizes of a process tree."""
    total = 0
    for process in family(pid):
        status = Path(f"/proc/{process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return total


@contextmanager
def running(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server in a process group of its own and end that group afterwards."""
    with log.open("w") as stream:
        server = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            yield server
        finally:
            members = family(server.pid)
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            for process in psutil.wait_procs(members, timeout=15)[1]:
                process.kill()
            server.wait(15)


class ServeBench:
    """All servers, all rounds."""

    def __init__(self, asked: argparse.Namespace, servers: list[Server]) -> None:
        """Read the tokenizer."""
        self.asked = asked
        self.servers = servers
        self.maker = PromptMaker(asked.models / asked.model)
        self.rows: list[Row] = []

    def run(self) -> None:
        """Run everything that was asked for; a server that fails is told of and left out."""
        for number in range(self.asked.rounds):
            start = number % len(self.servers)
            for server in self.servers[start:] + self.servers[:start]:
                wait_quiet(self.asked.quiet_share, self.asked.quiet_wait_s)
                try:
                    self._serve(server, number)
                except ServerFailed as error:
                    self._write({"server": server.name, "round": number, "error": str(error)})

    def _serve(self, server: Server, number: int) -> None:
        """Start one server, run all levels against it, stop it. Raises: ServerFailed"""
        asked, port = self.asked, free_port()
        url = f"http://127.0.0.1:{port}"
        log = asked.logs / f"serve-{server.name}.log"
        command = server.arguments(asked.models, asked.model, asked.venvs, port, asked.threads)
        if not Path(command[0]).exists():
            raise ServerFailed(f"not installed: no {command[0]}")
        start_s = time.perf_counter()
        with running(command, self._environment(server), log) as process:
            self._wait(process, url, server, log, start_s)
            start = {
                "server": server.name,
                "round": number,
                "threads": asked.threads,
                "start_s": time.perf_counter() - start_s,
                "idle_bytes": resident_bytes(process.pid),
            }
            asyncio.run(run_level(url, self._bodies(server, 2, 8, seed=998), 2))  # warm-up
            for concurrency in asked.concurrency:
                row = start | self._level(server, url, concurrency, number)
                self._write(row | {"peak_bytes": peak_bytes(process.pid)})

    def _environment(self, server: Server) -> dict[str, str]:
        told = os.environ | {"OMP_NUM_THREADS": str(self.asked.threads), "HF_HUB_OFFLINE": "1"}
        told.pop("PYTHONPATH", None)
        last = self.asked.threads - 1
        return told | {name: text.format(last=last) for name, text in server.environment.items()}

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        url: str,
        server: Server,
        log: Path,
        start_s: float,
    ) -> None:
        """Ask for one token until it comes. Raises: ServerFailed"""
        body = self._bodies(server, 1, 1, seed=999)[0]
        while not is_answering(url, body):
            has_ended = process.poll() is not None
            if has_ended or time.perf_counter() - start_s > START_LIMIT_S:
                why = "it ended" if has_ended else f"no completion in {START_LIMIT_S:.0f} s"
                raise ServerFailed(f"{why}: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.05)

    def _bodies(self, server: Server, count: int, num_new: int, *, seed: int) -> list[Row]:
        prompts = self.maker.make(count, NUM_PROMPT, seed=seed)
        common = {"model": "m", "max_tokens": num_new, "temperature": 0, **server.body}
        return [{"prompt": prompt.text, **common} for prompt in prompts]

    def _level(self, server: Server, url: str, concurrency: int, number: int) -> Row:
        asked = self.asked
        seed = 1000 * number + concurrency
        bodies = self._bodies(server, asked.requests, asked.new, seed=seed)
        with Window(pids=[os.getpid()]) as window:  # servers are children of this process
            wall_s, timings = asyncio.run(run_level(url, bodies, concurrency))
        shares = {"own_share": window.own_share, "foreign_share": window.foreign_share}
        return {"concurrency": concurrency, **level_figures(wall_s, timings, asked.new), **shares}

    def _write(self, row: Row) -> None:
        """Keep a row, append it to the file and print it. Mutates: rows."""
        self.rows.append(row)
        with self.asked.out.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}))
        sys.stdout.flush()


def level_figures(wall_s: float, timings: list[Timing], num_new: int) -> Row:
    """Return rates and latencies; "error" when a request failed or made another number of tokens.

    A server may send an event after its last token, so only as many events as tokens are read.
    """
    faults = [timing.error for timing in timings if timing.error]
    counts = {timing.tokens for timing in timings if not timing.error}
    if faults or counts != {num_new}:
        return {"error": f"asked for {num_new} tokens, made {counts}; {faults[:1]}"}
    events = [timing.events_s[:num_new] for timing in timings]
    firsts_s = [e[0] - t.start_s for e, t in zip(events, timings, strict=True)]
    gaps_s = [b - a for e in events for a, b in itertools.pairwise(e)]
    each_s = [(e[-1] - e[0]) / (num_new - 1) for e in events]
    return {
        "requests_s": len(timings) / wall_s,
        "new_tok_s": len(timings) * num_new / wall_s,
        "ttft_p50_ms": 1e3 * percentile(firsts_s, 0.5),
        "ttft_p99_ms": 1e3 * percentile(firsts_s, 0.99),
        "itl_p50_ms": 1e3 * percentile(gaps_s, 0.5),
        "itl_p99_ms": 1e3 * percentile(gaps_s, 0.99),
        "token_mean_ms": 1e3 * sum(each_s) / len(each_s),
    }


COLUMNS = {
    "requests_s": "{:.2f}", "new_tok_s": "{:.0f}", "ttft_p50_ms": "{:.0f}", "ttft_p99_ms": "{:.0f}",
    "itl_p50_ms": "{:.1f}", "itl_p99_ms": "{:.1f}", "token_mean_ms": "{:.1f}", "start_s": "{:.2f}",
    "foreign_share": "{:.2f}",
}  # fmt: skip


def table(rows: list[Row]) -> str:
    """Return one line a server and level, medians over rounds, and one for each that failed."""
    good = [row for row in rows if "error" not in row]
    header = ["server", "at once", *COLUMNS, "idle MiB", "peak MiB"]
    lines = [header, ["---"] * len(header)]
    for concurrency in ordered(row["concurrency"] for row in good):
        for name in ordered(row["server"] for row in good):
            found = [r for r in good if (r["server"], r["concurrency"]) == (name, concurrency)]
            if found:
                cells = [form.format(middle(found, column)) for column, form in COLUMNS.items()]
                sizes = [f"{middle(found, s) / 2**20:.0f}" for s in ("idle_bytes", "peak_bytes")]
                lines.append([name, str(concurrency), *cells, *sizes])
    failed = {row["server"]: row["error"] for row in rows if "error" in row}
    blank = [""] * (len(header) - 2)
    lines += [[name, f"missing: {' '.join(why.split())}", *blank] for name, why in failed.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments_of(given: list[str] | None = None) -> Any:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="folder of make_models.py")
    parser.add_argument("--model", default="T")
    parser.add_argument("--venvs", type=Path, required=True, help="folder of the peers' venvs")
    parser.add_argument("--peers", nargs="*", default=["xllamacpp-q8_0", "vllm-bf16"])
    parser.add_argument("--server", action="append", default=[], help='"NAME: FLAGS" of dovetail')
    parser.add_argument("--concurrency", nargs="*", type=int, default=[1, 8, 16])
    parser.add_argument("--requests", type=int, default=16, help="a level")
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quiet-share", type=float, default=0.1, help="wait until others use less")
    parser.add_argument("--quiet-wait-s", type=float, default=10.0, help="but no longer than this")
    parser.add_argument("--logs", type=Path, default=Path("peer-logs"))
    parser.add_argument("--out", type=Path, default=Path("peer-servers.jsonl"))
    return parser.parse_args(given)


def main() -> None:
    """Run and print the table."""
    asked = arguments_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing started is left
    asked.logs.mkdir(parents=True, exist_ok=True)
    servers = [SERVERS[name] for name in asked.peers]
    servers += [dovetail_server(text) for text in asked.server]
    bench = ServeBench(asked, servers)
    try:
        bench.run()
    finally:
        print(table(bench.rows))


if __name__ == "__main__":
    main()
