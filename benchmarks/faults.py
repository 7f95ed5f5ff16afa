"""Faults: every kind of process of a server with several engines is killed, or stopped, under load.

The server has two API processes and three engines, the third run by a headless process as if on
another machine; with `--ranks 2` each engine has two ranks. For every fault both are started anew,
clients stream answers without a pause, and one process gets SIGKILL, or SIGSTOP for longer than
--engine-step-timeout. Told are: how the requests ended that were under way, when /health (or a
refused connection) first showed it, whether new requests were answered, and what was left over:
requests that never ended, processes, sockets and folders in TMPDIR, segments in /dev/shm.

    PYTHONPATH=core:plugins:kernels python benchmarks/faults.py [--times 20] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

STEP_TIMEOUT_S = 2.0
NUM_STREAMS = 12
NEW_TOKENS = 150
START_LIMIT_S = 120.0
NOTICE_LIMIT_S = 18.0
REQUEST_LIMIT_S = 30.0
"""A request that has not ended by then never does."""
ORPHAN_LIMIT_S = 8.0
LOOK_PERIOD_S = 0.01
END_LIMIT_S = 15.0
NUM_AFTER = 6
ENDS = ("refused", "503")
"""What /health says once no engine, or no server, is left."""
ENGINE, API, RANK = (
    "dovetail.engine.ipc.process",
    "dovetail.server.launch.api_process",
    "dovetail.ranks.rank_process",
)


class Family:
    """A program and all that it has ever been seen to have below it."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log.open("w")
        command = [sys.executable, "-m", "dovetail", "serve", *words]
        self.process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log)
        self.root = psutil.Process(self.process.pid)
        self._known: dict[int, psutil.Process] = {}

    def members(self) -> list[psutil.Process]:
        """Return those below the program that still run."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.root.children(recursive=True):
                self._known[child.pid] = child
        return [one for one in self._known.values() if _runs(one)]

    def of(self, module: str) -> list[psutil.Process]:
        """Return the members that run a module, the eldest first."""
        found = [one for one in self.members() if module in one.cmdline()]
        return sorted(found, key=lambda one: (one.create_time(), one.pid))

    def close(self) -> None:
        """Kill what is left."""
        for one in (self.root, *self.members()):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()
        self._log.close()


def _runs(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True, slots=True)
class Setting:
    """A server under load, and what runs its third engine."""

    head: Family
    headless: Family
    url: str
    folder: Path


Target = Callable[[Setting], psutil.Process]


def _rank_of(family: Family, number: int) -> psutil.Process:
    """Return the last rank of a family's engine."""
    engine = family.of(ENGINE)[number]
    ranks = [one for one in engine.children() if RANK in one.cmdline()]
    return max(ranks, key=lambda one: (one.create_time(), one.pid))


TARGETS: dict[str, Target] = {
    "engine 0": lambda one: one.head.of(ENGINE)[0],
    "engine 1": lambda one: one.head.of(ENGINE)[1],
    "engine 2, elsewhere": lambda one: one.headless.of(ENGINE)[0],
    "a rank of engine 0": lambda one: _rank_of(one.head, 0),
    "a rank of engine 2, elsewhere": lambda one: _rank_of(one.headless, 0),
    "an API process": lambda one: one.head.of(API)[0],
    "the headless process": lambda one: one.headless.root,
    "the head": lambda one: one.head.root,
}
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@dataclass(slots=True)
class Seen:
    """What one fault came to."""

    under_way: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    notice_s: float | None = None
    health: str = ""
    answered_after: int = 0
    never_ended: int = 0
    orphans: int = 0
    left_files: list[str] = field(default_factory=list)
    left_segments: list[str] = field(default_factory=list)
    statuses: tuple[int | None, int | None] = (None, None)


@contextlib.contextmanager
def started(ranks: int) -> Iterator[Setting]:
    """Give a server that answers."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        http, port = _free_port(), _free_port()
        env = dict(os.environ) | {
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "DOVETAIL_DATA_PARALLEL_SECRET": secrets.token_hex(32),
        }
        common = [
            "--data-parallel-size", "3", "--data-parallel-size-local", "2",
            "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port),
            "--cpu-cores", "nobind", "--engine-step-timeout", str(STEP_TIMEOUT_S),
            "--tensor-parallel-size", str(ranks), "--max-model-len", "512",
        ]  # fmt: skip
        far = [
            "--headless", "--data-parallel-start-rank", "2", *common[:2],
            "--data-parallel-size-local", "1", *common[4:],
        ]  # fmt: skip
        near = ["--port", str(http), "--api-server-count", "2", "--shutdown-timeout", "5"]
        headless = Family(far, env, folder / "headless.log")
        head = Family([*near, *common], env, folder / "head.log")
        setting = Setting(head, headless, f"http://127.0.0.1:{http}", folder)
        try:
            _wait_ready(setting)
            yield setting
        finally:
            head.close()
            headless.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(setting: Setting) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and setting.head.process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{setting.url}/ready", timeout=1).status_code == 200:
                return
        time.sleep(0.05)
    logs = [(setting.folder / name).read_text()[-2000:] for name in ("head.log", "headless.log")]
    raise SystemExit("the server did not start:\n" + "\n".join(logs))


async def stream(client: httpx.AsyncClient, number: int, most: int = NEW_TOKENS) -> str:
    """Return how one streamed answer ended: "answered", an HTTP status, "error" or "cut off"."""
    body = {"prompt": f"{number} x", "max_tokens": most, "ignore_eos": True, "stream": True}
    last = ""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                return str(answer.status_code)
            async for line in answer.aiter_lines():
                last = line if line.startswith("data: ") else last
                if '"error"' in line:
                    return str(json.loads(line[6:])["error"]["type"])
    except httpx.HTTPError:
        return "cut off"
    return "answered" if last == "data: [DONE]" else "cut off"


class Load:
    """Clients that ask again as soon as they have been answered, until they are to stop."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._is_over = False
        self._under_way: dict[int, bool] = {}
        self.seen = Seen()
        self._tasks = [asyncio.create_task(self._run(n)) for n in range(NUM_STREAMS)]

    async def _run(self, number: int) -> None:
        while not self._is_over:
            self._under_way[number] = False
            how = await stream(self._client, number)
            if self._under_way[number]:
                self.seen.ends[how] += 1
            self._under_way[number] = False
            if how != "answered":
                await asyncio.sleep(0.1)

    def mark(self) -> None:
        """Count from now on how those end that are under way. Mutates: self"""
        self._under_way = dict.fromkeys(self._under_way, True)
        self.seen.under_way = len(self._under_way)

    async def stop(self) -> None:
        """Let every client finish; those that never do are counted and given up."""
        self._is_over = True
        _, pending = await asyncio.wait(self._tasks, timeout=REQUEST_LIMIT_S)
        self.seen.never_ended = len(pending)
        for task in pending:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def health_of(url: str) -> str:
    """Return in a few words what /health says: its status, and engines that do not work."""
    try:
        async with httpx.AsyncClient(timeout=1.0) as client:
            answer = await client.get(f"{url}/health")
    except httpx.HTTPError as error:
        return "refused" if isinstance(error, httpx.ConnectError) else "silent"
    if answer.status_code != 200:
        return str(answer.status_code)
    told = answer.json()
    ill = [f"{one['engine']} {one['state']}" for one in told["engines"] if one["state"] != "up"]
    return ", ".join(ill) or str(told["status"])


async def notice(url: str, begun_s: float, limit_s: float) -> tuple[float | None, str]:
    """Return after what time /health said that something is dead, and what it said."""
    last = "ok"
    while time.monotonic() - begun_s < limit_s:
        last = await health_of(url)
        if "dead" in last or last in ENDS:
            return time.monotonic() - begun_s, last
        await asyncio.sleep(LOOK_PERIOD_S)
    return None, last


async def strike(setting: Setting, target: str, fault: str) -> Seen:
    """Return what one fault came to while clients streamed."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=setting.url, timeout=httpx.Timeout(REQUEST_LIMIT_S * 2), limits=limits
    ) as client:
        load = Load(client)
        await _until_all_run(client)
        victim = TARGETS[target](setting)
        is_told = fault == "killed" or "API" in target  # others may be stopped for a while
        setting.head.members(), setting.headless.members()
        load.mark()
        begun_s = time.monotonic()
        victim.send_signal(FAULTS[fault])
        limit_s = NOTICE_LIMIT_S if is_told else STEP_TIMEOUT_S * 2 + 2
        load.seen.notice_s, load.seen.health = await notice(setting.url, begun_s, limit_s)
        if fault == "stopped":
            await asyncio.sleep(max(0.0, STEP_TIMEOUT_S + 1 - (time.monotonic() - begun_s)))
        await load.stop()
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)
        found = await asyncio.gather(*(stream(client, n, 4) for n in range(NUM_AFTER)))
        load.seen.answered_after = found.count("answered")
    return load.seen


async def _until_all_run(client: httpx.AsyncClient) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        told = (await client.get("/health")).json()
        if all(one["running"] > 0 for one in told["engines"]):
            return
        await asyncio.sleep(0.02)
    raise SystemExit("not every engine got work")


def run_once(target: str, fault: str, ranks: int) -> Seen:
    """Return what one fault came to, and what was left once everything had ended."""
    segments = _names(Path("/dev/shm"))
    with started(ranks) as setting:
        seen = asyncio.run(strike(setting, target, fault))
        if not seen.answered_after:  # it ends by itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                setting.head.process.wait(END_LIMIT_S)
        if setting.head.process.poll() is None:
            setting.head.process.send_signal(signal.SIGTERM)
        statuses = []
        for family in (setting.head, setting.headless):
            try:
                statuses.append(family.process.wait(END_LIMIT_S))
            except subprocess.TimeoutExpired:
                statuses.append(None)
        seen.statuses = (statuses[0], statuses[1])
        deadline_s = time.monotonic() + ORPHAN_LIMIT_S
        families = (setting.head, setting.headless)
        while any(one.members() for one in families) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        seen.orphans = sum(len(one.members()) for one in families)
        seen.left_files = sorted(_names(setting.folder / "tmp"))
    seen.left_segments = sorted(_names(Path("/dev/shm")) - segments)
    return seen


def _names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def row_of(target: str, fault: str, all_seen: list[Seen]) -> str:
    """Return a row of the table."""
    ends: Counter[str] = Counter()
    for seen in all_seen:
        ends.update(seen.ends)
    under_way = sum(seen.under_way for seen in all_seen)
    how = ", ".join(f"{count} {word}" for word, count in ends.most_common())
    times = [seen.notice_s for seen in all_seen if seen.notice_s is not None]
    said = Counter(seen.health for seen in all_seen).most_common(1)[0][0]
    when = f"{statistics.median(times):.2f} s (most {max(times):.2f})" if times else "never"
    after = f"{sum(s.answered_after for s in all_seen)} of {NUM_AFTER * len(all_seen)}"
    statuses = Counter(s.statuses for s in all_seen).most_common(1)[0][0]
    left = [
        sum(s.never_ended for s in all_seen), sum(s.orphans for s in all_seen),
        sum(len(s.left_files) for s in all_seen), sum(len(s.left_segments) for s in all_seen),
    ]  # fmt: skip
    cells = [
        target, fault, str(len(all_seen)), f"{under_way}: {how}", f"`{said}` {when}", after,
        f"{statuses[0]}, {statuses[1]}", *map(str, left),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| process | fault | times | requests under way | /health after | new requests answered | "
    "exit status (head, headless) | never ended | orphans | in TMPDIR | in /dev/shm |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Print the table; return 1 when anything was left over."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=20, help="how often each fault happens")
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2), help="ranks of an engine")
    parser.add_argument("--only", nargs="*", default=[], help="processes, by their names here")
    parser.add_argument("--fault", nargs="*", default=list(FAULTS), choices=list(FAULTS))
    flags = parser.parse_args()
    is_clean = True
    print(HEAD, flush=True)
    for target in flags.only or TARGETS:
        if "rank" in target and flags.ranks == 1:
            continue
        for fault in flags.fault:
            all_seen = [run_once(target, fault, flags.ranks) for _ in range(flags.times)]
            print(row_of(target, fault, all_seen), flush=True)
            for seen in all_seen:
                left = [*seen.left_files, *seen.left_segments]
                is_clean &= not (left or seen.never_ended or seen.orphans)
                if left:
                    print(f"left: {', '.join(left)}", file=sys.stderr)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
