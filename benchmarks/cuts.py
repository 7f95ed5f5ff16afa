"""Cancellations: requests of every kind are cut off at random moments, at the sockets of a server.

A server of the demo model is started, with files and batches. Clients send each kind of request
(tests/support/cut_kinds.py) and leave: after the whole request, at a moment of the time that an
answer takes, or after a part of its bytes; by closing the connection in order, or by a reset. Every
tenth of the way all clients pause, and once the server is idle, it is measured: the queue, open
connections, the share of the KV cache in use, and the descriptors, threads and memory of each of
its processes. All but memory must be as at the start, and memory within a bound of it; then the
same question must get the same answer, and a new schema and every kind an answer.

    PYTHONPATH=core:plugins:kernels python benchmarks/cuts.py [--cuts 20000] [--record FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from support.cut_kinds import BOUNDARY, KINDS, NAME, OTHER_KINDS, upload  # noqa: E402

AT_ONCE = 24
NUM_WARM = 20
"""Cuts of each kind before the start is measured: by then caches and pools have what they hold."""
NUM_ROWS = 10
WHOLE_EVERY = 8
"""Every eighth request is not cut; its duration is the range of the moments of later cuts."""
SMALL_CACHES = (
    "--kv-cache-memory-bytes", "24M", "--structured-outputs-config.cache_bytes", "16777216",
)  # fmt: skip
"""Caches that are full by the start, so that memory that grows later is lost."""
START_LIMIT_S = 400.0
SETTLE_LIMIT_S = 90.0
PATIENCE_S = 60.0
ASK_LIMIT_S = 300.0
"""A busy machine lets the server work off requests whose clients have long left."""
PARTS, RESETS, WHOLE = (2, 3), (1, 3), 4
FIRST_GUESS_S = 0.2
SPARE_DESCRIPTORS = 4
SPARE_MIB = 64
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "seed": 1}
ALL_KINDS = {kind: (f"POST {path}", body) for kind, (path, body) in KINDS.items()} | OTHER_KINDS


@contextlib.contextmanager
def started(folder: Path) -> Iterator[tuple[psutil.Process, int, Path]]:
    """Give a server that answers, its port and its log."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = ["--port", str(port), "--served-model-name", NAME, "--max-num-seqs", "16"]
    words += ["--file-storage", str(folder / "files"), "--cpu-cores", "nobind", *SMALL_CACHES]
    log = folder / "server.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "dovetail", "serve", *words]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ)
    try:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"The server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)
        yield psutil.Process(process.pid), port, log
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=1).status_code == 200
    return False


@dataclass(slots=True)
class Held:
    """What a server holds at a moment when nobody asks anything of it."""

    queue: dict[str, int]
    kv_share: float
    connections: int
    processes: int
    descriptors: int
    threads: int
    memory_mib: list[int]

    def beyond(self, start: Held) -> list[str]:
        """Return in words what there is more of than at the start."""
        found = [f"{name}: {count}" for name, count in self.queue.items() if count]
        found += [f"KV cache in use: {self.kv_share}"] if self.kv_share else []
        spare = {"descriptors": SPARE_DESCRIPTORS, "connections": 0, "processes": 0, "threads": 8}
        for name, more in spare.items():
            before, now = getattr(start, name), getattr(self, name)
            found += [f"{name}: {before}, then {now}"] if now > before + more else []
        before, now = sum(start.memory_mib), sum(self.memory_mib)
        return found + ([f"MiB: {before}, then {now}"] if now > before + SPARE_MIB else [])


def held(server: psutil.Process, port: int) -> Held:
    """Return what the server holds now."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ASK_LIMIT_S) as client:
        queue, metrics = client.get("/load").json(), client.get("/metrics").text
    share = next(line for line in metrics.splitlines() if line.startswith("vllm:kv_cache_usage"))
    family = [server, *server.children(recursive=True)]
    return Held(
        queue=queue,
        kv_share=float(share.split()[-1]),
        connections=sum(
            one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port
            for one in server.net_connections("tcp")
        ),
        processes=len(family),
        descriptors=sum(one.num_fds() for one in family),
        threads=sum(one.num_threads() for one in family),
        memory_mib=[one.memory_info().rss >> 20 for one in family],
    )


def settled(server: psutil.Process, port: int, start: Held | None = None) -> Held:
    """Return what the server holds once it is idle, and it is as at the start."""
    deadline_s = time.monotonic() + SETTLE_LIMIT_S
    while True:
        time.sleep(1)
        now = held(server, port)
        is_idle = not any(now.queue.values()) and not now.connections and not now.kv_share
        if (is_idle and not (start and now.beyond(start))) or time.monotonic() > deadline_s:
            return now


@dataclass(slots=True)
class Seen:
    """How requests ended, and how long whole answers took."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    whole_s: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, way: int, answer: bytes, took_s: float | None) -> None:
        """Count one request; `took_s` if its whole answer came. Mutates: self"""
        status = answer[9:12].decode() or "none"
        if took_s is not None and way == WHOLE:
            self.whole_s[kind] = 0.7 * self.whole_s.get(kind, took_s) + 0.3 * took_s
        end = "answered" if took_s is not None else "cut in its answer" if answer else "cut before"
        end = "cut in the request" if way in PARTS and took_s is None else end
        self.ends["not cut" if way == WHOLE else end] += 1
        if status.startswith("5") and status != "503":
            self.faults.append(f"{kind}: {answer[:400]!r}")

    @property
    def num_cuts(self) -> int:
        """Return how many were cut, or answered just before."""
        return self.ends.total() - self.ends["not cut"]


def request_bytes(kind: str, number: int, ids: dict[str, str]) -> bytes:
    """Return one request as it goes over the wire."""
    where, body_of = ALL_KINDS[kind]
    body = body_of(number)
    is_form = isinstance(body, bytes)
    data = body if is_form else json.dumps(body).encode()
    for name, value in ids.items():
        where = where.replace(f"{{{name}}}", value)
        data = data.replace(f"{{{name}}}".encode(), value.encode())
    what = f"multipart/form-data; boundary={BOUNDARY}" if is_form else "application/json"
    head = f"{where} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {what}\r\n"
    head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return head.encode() + data


async def cut(port: int, kind: str, raw: bytes, draw: random.Random, way: int, seen: Seen) -> None:
    """Send one request and leave: in order (way 0 and 2) or by a reset (1 and 3); after the whole
    of it (0 and 1) or a part; or stay (WHOLE). Mutates: seen"""
    moment_s = draw.random() * 1.1 * seen.whole_s.get(kind, FIRST_GUESS_S)
    moment_s = PATIENCE_S if way == WHOLE else moment_s
    sent = raw[: draw.randrange(len(raw))] if way in PARTS else raw
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if way in RESETS:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    begun_s, answer, took_s = time.monotonic(), b"", None
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(moment_s):
            writer.write(sent)
            while part := await reader.read(1 << 16):
                answer += part
            took_s = time.monotonic() - begun_s
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    seen.note(kind, way, answer, took_s)


async def cut_each(port: int, numbers: range, seed: int, ids: dict[str, str], seen: Seen) -> None:
    """Cut one request of each kind for every number, in an order that the seed decides."""
    draw = random.Random(seed)
    work = [(kind, number, number % 4) for kind in ALL_KINDS for number in numbers]
    work += [(kind, number, WHOLE) for kind, number, _ in work if number % WHOLE_EVERY == 0]
    draw.shuffle(work)
    turns = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for kind, number, way in work:
            await turns.acquire()
            raw = request_bytes(kind, number, ids)
            task = group.create_task(cut(port, kind, raw, draw, way, seen))
            task.add_done_callback(lambda _: turns.release())


def stored(port: int) -> dict[str, str]:
    """Return the ids of a response, a conversation and a file."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        response = client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 24})
        form = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        file = client.post("/v1/files", content=upload(0, num_lines=2), headers=form)
        conversation = client.post("/v1/conversations", json={})
    return {
        "response": response.json()["id"],
        "file": file.json()["id"],
        "conversation": conversation.json()["id"],
    }


def whole_answers(port: int, ids: dict[str, str]) -> dict[str, int]:
    """Return the status of each kind of request when it is not cut."""
    found = {}
    for kind in ALL_KINDS:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
            line.sendall(request_bytes(kind, 10**6, ids))
            found[kind] = int(line.makefile("rb").readline()[9:12])
    return found


def answer_to_question(port: int) -> Any:
    """Return what the server answers to a question with a seed."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    return httpx.post(url, json=QUESTION, timeout=60).json()["choices"][0]["message"]["content"]


def log_faults(log: Path) -> list[str]:
    """Return the lines of a server's log that report an error."""
    words = (" ERROR ", "Traceback", "never retrieved", "was never awaited")
    return [line for line in log.read_text().splitlines() if any(word in line for word in words)]


def row(num_cuts: int, now: Held) -> str:
    """Return a row of the table."""
    queue = " ".join(f"{now.queue[name]}" for name in ("running", "waiting", "inside"))
    memory = " + ".join(str(one) for one in now.memory_mib)
    cells = (f"{num_cuts:,}", queue, now.connections, now.descriptors, now.threads, memory)
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def measure(num_cuts: int, say: Any) -> list[str]:
    """Cut that many requests, and return what was wrong then."""
    each = max(1, num_cuts // len(ALL_KINDS) // NUM_ROWS)
    warm, seen = Seen(), Seen()
    with tempfile.TemporaryDirectory(prefix="cuts-") as name, started(Path(name)) as made:
        server, port, log = made
        ids, before = stored(port), answer_to_question(port)
        first = whole_answers(port, ids)
        asyncio.run(cut_each(port, range(NUM_WARM), 1, ids, warm))
        seen.whole_s = warm.whole_s
        start = settled(server, port)
        say("| cuts | running, waiting, inside | connections | descriptors | threads | MiB |")
        say("|---|---|---|---|---|---|")
        say(row(0, start))
        for part in range(NUM_ROWS):
            numbers = range(1000 + part * each, 1000 + (part + 1) * each)
            asyncio.run(cut_each(port, numbers, 2 + part, ids, seen))
            now = settled(server, port, start)
            say(row(seen.num_cuts, now))
        say(f"\n{len(ALL_KINDS)} kinds; {dict(seen.ends)}")
        wrong = [*seen.faults, *now.beyond(start), *log_faults(log)]
        after = whole_answers(port, ids)
        wrong += [f"{kind}: {first[kind]}, then {after[kind]}" for kind in first
                  if first[kind] != after[kind]]  # fmt: skip
        wrong += [] if answer_to_question(port) == before else ["another answer than before"]
    say(f"statuses of whole answers: {dict(Counter(first.values()))}")
    say("\n".join(f"WRONG: {line}" for line in wrong) or "all as at the start")
    return wrong


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cuts", type=int, default=20_000, help="how many requests are cut")
    parser.add_argument("--record", type=Path, help="a file to which what is printed is added")
    asked = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)
        if asked.record is not None:
            with asked.record.open("a") as record:
                record.write(text + "\n")

    began_s = time.monotonic()
    wrong = measure(asked.cuts, say)
    say(f"{time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
