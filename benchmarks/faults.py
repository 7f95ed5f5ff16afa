"""Faults: every kind of process of a server with several engines is killed, or stopped, under load.

The server has two API processes, engines of its own, and others that headless processes run as if
on other machines. A round starts all of it and lets one fault after another happen, those last that
end the server, while clients stream answers without a pause: one process gets SIGKILL, or SIGSTOP
for longer than --engine-step-timeout. Told are: how the requests ended that were under way, when
/health (or a refused connection) first showed it, when the process and all below it were gone,
whether new requests were answered, and at the round's end what was left over: requests that never
ended, processes, sockets and folders in TMPDIR, segments in /dev/shm.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.faults [--times 20] [--record FILE]

Most of a round is waiting, and starting its processes: --at-once 2 runs two beside each other, by
which all of them fit into a quarter of an hour; times of notice then include the other's load. With
a record, rounds that are in it already are not run again, and --minutes ends a run early.
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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.faults_report import NUM_AFTER, Left, Seen, add_to, read_record, report

STEP_TIMEOUT_S = 2.0
NUM_STREAMS = 12
NEW_TOKENS = 100
START_LIMIT_S = 300.0
NOTICE_LIMIT_S = 18.0
REQUEST_LIMIT_S = 30.0
"""A request that has not ended by then never does."""
ORPHAN_LIMIT_S = 8.0
LOOK_PERIOD_S = 0.01
END_LIMIT_S = 15.0
ENDS = ("refused", "503")
"""What /health says once no engine, or no server, is left."""
ENGINE, API, RANK = (
    "dovetail.engine.process",
    "dovetail.server.launch.api_process",
    "dovetail_plugins.ranks.rank_process",
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
    """A server under load, and what runs its engines elsewhere, a machine each."""

    head: Family
    machines: tuple[Family, ...]
    url: str
    folder: Path

    @property
    def families(self) -> tuple[Family, ...]:
        """Return all programs."""
        return (self.head, *self.machines)


Target = Callable[[Setting], psutil.Process]
Fault = tuple[str, str]


def _rank_of(family: Family) -> psutil.Process:
    """Return the last rank of a family's first engine."""
    ranks = [one for one in family.of(ENGINE)[0].children() if RANK in one.cmdline()]
    return max(ranks, key=lambda one: (one.create_time(), one.pid))


def _far(setting: Setting) -> Family:
    """Return the first of the machines whose engine still runs."""
    return next(one for one in setting.machines if one.of(ENGINE))


TARGETS: dict[str, Target] = {
    "an engine": lambda one: one.head.of(ENGINE)[0],
    "an engine elsewhere": lambda one: _far(one).of(ENGINE)[0],
    "a rank": lambda one: _rank_of(one.head),
    "a rank elsewhere": lambda one: _rank_of(_far(one)),
    "a headless process": lambda one: one.machines[-1].root,
    "an API process": lambda one: one.head.of(API)[0],
    "the head": lambda one: one.head.root,
}
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
ONLY_WATCHES = ("a headless process", "the head")
"""What may be stopped for a while, and nobody needs to be told."""


@dataclass(frozen=True, slots=True)
class Round:
    """What is started, and what befalls it, in order."""

    ranks: int
    here: int
    machines: int
    faults: tuple[Fault, ...]


ROUNDS = {
    "killed": Round(1, 2, 2, (
        ("the head", "stopped"), ("a headless process", "stopped"), ("an engine", "killed"),
        ("an engine elsewhere", "killed"), ("a headless process", "killed"),
        ("an API process", "killed"),
    )),
    "stopped": Round(1, 2, 1, (
        ("an engine", "stopped"), ("an engine elsewhere", "stopped"), ("an API process", "stopped"),
    )),
    "ranks": Round(2, 3, 2, (
        ("a rank", "killed"), ("a rank elsewhere", "killed"), ("a rank", "stopped"),
        ("a rank elsewhere", "stopped"), ("the head", "killed"),
    )),
}  # fmt: skip


@contextlib.contextmanager
def started(asked: Round) -> Iterator[Setting]:
    """Give a server that answers."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "tmp").mkdir()
        http, port = free_port(), free_port()
        env = dict(os.environ) | {
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "DOVETAIL_DATA_PARALLEL_SECRET": secrets.token_hex(32),
        }
        common = [
            "--data-parallel-size", str(asked.here + asked.machines),
            "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port),
            "--cpu-cores", "nobind", "--engine-step-timeout", str(STEP_TIMEOUT_S),
            "--max-engine-restarts", "0",
            "--tensor-parallel-size", str(asked.ranks), "--max-model-len", "512",
            "--data-parallel-size-local",
        ]  # fmt: skip
        near = ["--port", str(http), "--api-server-count", "2", "--shutdown-timeout", "5"]

        def family(words: list[str], log: str) -> Family:
            made = Family(words, env, folder / log)
            stack.callback(made.close)
            return made

        machines = []
        for number in range(asked.here, asked.here + asked.machines):
            far = ["--headless", "--data-parallel-start-rank", str(number), *common, "1"]
            machines.append(family(far, f"headless-{number}.log"))
        head = family([*near, *common, str(asked.here)], "head.log")
        setting = Setting(head, tuple(machines), f"http://127.0.0.1:{http}", folder)
        _wait_ready(setting)
        yield setting


def free_port() -> int:
    """Return a port that nobody uses now."""
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
    raise SystemExit("the server did not start:\n" + logs_of(setting))


def logs_of(setting: Setting) -> str:
    """Return the end of what each program said."""
    logs = sorted(setting.folder.glob("*.log"))
    return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)


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
                self.seen.ends[how] = self.seen.ends.get(how, 0) + 1
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


async def notice(url: str, before: int, limit_s: float) -> tuple[float | None, str]:
    """Return after what time /health said that more than `before` are dead, and what it said."""
    begun_s, last = time.monotonic(), "ok"
    while time.monotonic() - begun_s < limit_s:
        last = await health_of(url)
        if _num_dead(last) > before or last in ENDS:
            return time.monotonic() - begun_s, last
        await asyncio.sleep(LOOK_PERIOD_S)
    return None, last


def _num_dead(health: str) -> int:
    return health.count("dead")


async def gone(processes: list[psutil.Process]) -> float | None:
    """Return after what time none of these runs any more."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < NOTICE_LIMIT_S + ORPHAN_LIMIT_S:
        if not any(_runs(one) for one in processes):
            return time.monotonic() - begun_s
        await asyncio.sleep(LOOK_PERIOD_S)
    return None


def _to_end(setting: Setting, target: str, victim: psutil.Process) -> list[psutil.Process]:
    """Return the processes that a fault's victim takes with it."""
    if target in ("the head", "an API process"):
        return setting.head.members()
    top = victim.parent() if "rank" in target else victim
    return [top, *top.children(recursive=True)] if top is not None else [victim]


async def strike(setting: Setting, target: str, fault: str) -> Seen:
    """Return what one fault came to while clients streamed."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=setting.url, timeout=httpx.Timeout(REQUEST_LIMIT_S * 2), limits=limits
    ) as client:
        load = Load(client)
        await _until_all_run(client)
        victim = TARGETS[target](setting)
        below = _to_end(setting, target, victim)
        is_told = fault == "killed" or target not in ONLY_WATCHES
        for family in setting.families:
            family.members()
        before = _num_dead(await health_of(setting.url))
        load.mark()
        victim.send_signal(FAULTS[fault])
        ending = asyncio.create_task(gone(below))
        limit_s = NOTICE_LIMIT_S if is_told else STEP_TIMEOUT_S + 1
        load.seen.notice_s, load.seen.health = await notice(setting.url, before, limit_s)
        await load.stop()
        if is_told:
            load.seen.gone_s = await ending
        ending.cancel()
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)
        found = await asyncio.gather(*(stream(client, n, 4) for n in range(NUM_AFTER)))
        load.seen.answered_after = found.count("answered")
    return load.seen


async def _until_all_run(client: httpx.AsyncClient) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        told = (await client.get("/health")).json()
        if all(one["running"] > 0 for one in told["engines"] if one["state"] == "up"):
            return
        await asyncio.sleep(0.02)
    raise SystemExit("not every engine got work")


def run_round(name: str) -> list[Seen | Left]:
    """Return what each fault of a round came to, and what was left once everything had ended."""
    found: list[Seen | Left] = []
    with started(ROUNDS[name]) as setting:
        for target, fault in ROUNDS[name].faults:
            try:
                seen = asyncio.run(strike(setting, target, fault))
            except BaseException:
                print(f"{target} {fault}; before it: {found}", logs_of(setting), file=sys.stderr)
                raise
            seen.round, seen.target, seen.fault = name, target, fault
            found.append(seen)
        left = _ended(setting)
        left.round = name
        left.files = sorted(_files(setting.folder / "tmp"))
        if is_odd(found, left):
            print(logs_of(setting), file=sys.stderr, flush=True)
    return [*found, left]


def run_rounds(names: Sequence[str]) -> list[Seen | Left]:
    """Return what comes of rounds beside each other. Segments that stay are told by the last."""
    segments = _names(Path("/dev/shm"))
    with ThreadPoolExecutor(len(names)) as pool:
        found = [one for made in pool.map(run_round, names) for one in made]
    last = found[-1]
    assert isinstance(last, Left), "a round ends with what it has left"
    last.segments = sorted(_names(Path("/dev/shm")) - segments)
    return found


def is_odd(found: Sequence[Seen | Left], left: Left) -> bool:
    """Return whether a round ended as it should not: look at the logs."""
    seen = [one for one in found if isinstance(one, Seen)]
    early = [one for one in seen[:-1] if one.answered_after < NUM_AFTER]
    never = [one for one in seen if one.never_ended or one.stayed]
    return bool(early or never or left.orphans or left.files or None in left.statuses)


def _ended(setting: Setting) -> Left:
    """Return how the programs ended, and which of their processes stayed."""
    left = Left()
    for family in setting.families:
        try:
            left.statuses.append(family.process.wait(END_LIMIT_S))
        except subprocess.TimeoutExpired:
            left.statuses.append(None)
    deadline_s = time.monotonic() + ORPHAN_LIMIT_S
    while any(one.members() for one in setting.families) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    left.orphans = [" ".join(one.cmdline()) for f in setting.families for one in f.members()]
    return left


def _files(folder: Path) -> set[str]:
    """Return the files and sockets below a folder, but for a killed server's record, which the next
    `dovetail ps` removes; empty folders are nothing."""
    found = {str(one.relative_to(folder)) for one in folder.rglob("*") if not one.is_dir()}
    return {name for name in found if not name.startswith(f"dovetail-{os.getuid()}/")}


def _names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def main() -> int:
    """Print the table; return 1 when anything was left over."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=20, help="how often each round is run")
    parser.add_argument("--rounds", nargs="*", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--record", type=Path, help="file to which what was seen is added")
    parser.add_argument("--minutes", type=float, help="begin no round after this time")
    parser.add_argument("--at-once", type=int, default=1, help="how many rounds run side by side")
    flags = parser.parse_args()
    found, begun_s = read_record(flags.record), time.monotonic()
    done = Counter(one.round for one in found if isinstance(one, Left))
    asked = [name for number in range(flags.times) for name in flags.rounds if done[name] <= number]
    for first in range(0, len(asked), flags.at_once):
        if flags.minutes and time.monotonic() - begun_s > flags.minutes * 60:
            break
        new = run_rounds(asked[first : first + flags.at_once])
        found += new
        if flags.record:
            add_to(flags.record, new)
    took_s = time.monotonic() - begun_s
    print(f"{len(asked)} rounds asked for, {flags.at_once} at once, in {took_s / 60:.1f} minutes")
    return 0 if report(found, list(ROUNDS)) else 1


if __name__ == "__main__":
    sys.exit(main())
