"""A mixture of experts whose weights are four times the memory that its server may use.

Writes the model (random numbers, 4 GB, once), packs it, and serves it end to end: without a limit,
then in a control group with a limit on its memory, with and without each mechanism in turn. Says
whether the tokens are those of the server without a limit, tokens/s, what is read from disk per
token, and the floor: the bytes of chosen experts that were not in memory, over the bandwidth of the
disk, measured between the runs. Needs the right to set memory limits, and says so if it lacks it.

    PYTHONPATH=core:plugins:kernels python benchmarks/larger_than_memory.py FOLDER \\
        [--limit 1GiB] [--tokens 96] [--rounds 3] [--threads 2] [--variants NAME,NAME] [--dense]

FOLDER, on the disk to measure, gets 9 GB. With --dense the model has no experts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.large_mixture import Shape, write_dense, write_mixture  # noqa: E402
from benchmarks.memory_limit import Group, NoLimit, limited, num_bytes  # noqa: E402

LIMIT_S = 900.0
WARM_TOKENS = 48
PROMPT = [(number * 37 + 11) % 2000 for number in range(8)]
REPORT = "FROM_DISK_REPORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a variant. `read` and `missed`: MiB per token from the disk, and of experts that
    were not resident; `hits`: the share of chosen experts that were."""

    digest: str
    tokens_per_s: float
    processor_s: float
    read: float
    missed: float
    hits: float
    bandwidth: float
    peak_mib: int


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", default="1GiB")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--dense", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    model = args.folder / ("dense.gguf" if args.dense else "mixture.gguf")
    if not model.exists():
        (write_dense if args.dense else write_mixture)(model, Shape())
    try:
        with limited(num_bytes(args.limit)) as group:
            run(args, model, "as_is", group)  # writes the packed weights
    except NoLimit as error:
        raise SystemExit(str(error)) from error
    expected = run(args, model, "whole", None)
    print(f"{model.name}: {model.stat().st_size >> 20} MiB, limit {args.limit}")
    print(f"without a limit: {expected.tokens_per_s:.2f} tokens/s")
    found: dict[str, list[Measured]] = defaultdict(list)
    names = args.variants.split(",")
    for _ in range(args.rounds):
        for name in random.sample(names, len(names)):
            with limited(num_bytes(args.limit)) as group:
                found[name].append(run(args, model, name, group))
            print(name, found[name][-1], file=sys.stderr, flush=True)
    print_table(found, names, expected)


def print_table(found: dict[str, list[Measured]], names: list[str], expected: Measured) -> None:
    """Print the medians of each variant."""
    titles = (
        "tokens/s",
        "ratio",
        "CPU s",
        "read",
        "missed",
        "hits",
        "floor",
        "GB/s",
        "peak",
        "tokens",
    )
    print(f"{'':<34}" + "".join(f"{title:>9}" for title in titles))
    first = statistics.median(one.tokens_per_s for one in found[names[0]])
    for name in names:

        def median(field: str, runs: list[Measured] = found[name]) -> float:
            return float(statistics.median(getattr(one, field) for one in runs))

        floor = median("missed") * 2**20 / 1e9 / median("bandwidth")
        same = all(one.digest == expected.digest for one in found[name])
        print(
            f"{VARIANTS[name][0]:<34}{median('tokens_per_s'):>9.2f}"
            f"{median('tokens_per_s') / first:>9.2f}{median('processor_s'):>9.3f}"
            f"{median('read'):>9.1f}{median('missed'):>9.1f}{median('hits'):>9.2f}"
            f"{1 / floor if floor else 0:>9.3g}{median('bandwidth'):>9.2f}"
            f"{median('peak_mib'):>9.0f}{'same' if same else 'WRONG':>9}"
        )


def run(args: argparse.Namespace, model: Path, name: str, group: Group | None) -> Measured:
    """Serve a model, ask it twice, and return what the second answer took."""
    report = args.folder / "report.json"
    for file in (model, *args.folder.glob("cache/dovetail/weights/*.packed")):
        drop(file)  # what another group has read is not counted in this one
    command = [
        sys.executable, str(Path(__file__).resolve()), "--serve", name, str(model),
        "--tokenizer", str(ROOT / "core/dovetail/demo_model"), "--max-model-len", "512",
        "--num-threads", str(args.threads), "--kv-cache-memory-bytes", str(96 << 20),
        "--max-num-seqs", "1", "--max-num-batched-tokens", "64", "--port",
    ]  # fmt: skip
    environment = os.environ | {"XDG_CACHE_HOME": str(args.folder / "cache"), REPORT: str(report)}
    port = free_port()
    command = [*command, str(port)]
    with (args.folder / "log.txt").open("w") as log:
        limited_command = command if group is None else group.within(command)
        server = subprocess.Popen(limited_command, env=environment, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            await_ready(url, server, args.folder / "log.txt")
            family = psutil.Process(server.pid)
            ask(url, min(WARM_TOKENS, args.tokens), seed=1)
            before, taken = counts(report, family), time.perf_counter()
            digest = ask(url, args.tokens, seed=2)
            taken = time.perf_counter() - taken
            after = counts(report, family)
            peak = 0 if group is None else group.peak_bytes()
        finally:
            server.terminate()
            server.wait(60)
    spent = {key: after[key] - before[key] for key in after}
    return Measured(
        digest=digest,
        tokens_per_s=args.tokens / taken,
        processor_s=spent["processor_s"] / args.tokens,
        read=spent["disk"] / args.tokens / 2**20,
        missed=spent["read_bytes"] / args.tokens / 2**20,
        hits=spent["resident"] / spent["chosen"] if spent["chosen"] else 0.0,
        bandwidth=disk_bandwidth(model),
        peak_mib=peak >> 20,
    )


def counts(report: Path, process: psutil.Process) -> dict[str, float]:
    """Return what the server has counted and what the system has."""
    process.send_signal(10)  # SIGUSR1
    time.sleep(0.3)
    own = json.loads(report.read_text()) if report.exists() else {}
    times = process.cpu_times()
    return {
        "disk": process.io_counters().read_bytes,
        "processor_s": times.user + times.system,
        **{key: own.get(key, 0) for key in ("chosen", "resident", "read_bytes")},
    }


def ask(url: str, tokens: int, seed: int) -> str:
    """Return a digest of the tokens that follow the prompt."""
    body = {
        "prompt": PROMPT, "max_tokens": tokens, "temperature": 3.0, "seed": seed,
        "ignore_eos": True, "logprobs": 0, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        found = json.load(answer)["choices"][0]["logprobs"]["tokens"]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def disk_bandwidth(path: Path) -> float:
    """Return GB/s of four threads that read 1 MiB pieces of a file past the page cache."""
    from concurrent.futures import ThreadPoolExecutor

    piece, count = 1 << 20, 512
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    places = random.sample(range(path.stat().st_size // piece - 1), count)
    buffers = [mmap.mmap(-1, piece) for _ in range(4)]

    def read(number: int) -> None:
        for place in places[number::4]:
            os.preadv(descriptor, [buffers[number]], place * piece)

    begin_s = time.perf_counter()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))
    os.close(descriptor)
    return count * piece / 1e9 / (time.perf_counter() - begin_s)


def drop(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def await_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):
            return
        if server.poll() is not None or time.monotonic() > end_s:
            raise SystemExit(f"it did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


def free_port() -> int:
    """Return a port that nothing listens on."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def serve(name: str, arguments: list[str]) -> None:
    """Serve with a variant's mechanisms, in one process; SIGUSR1 writes what was counted."""
    import signal

    from dovetail.cli.main import main as command_line
    from dovetail_plugins.packed_weights import from_disk

    made: list[Any] = []
    original = from_disk.FromDisk.__init__

    def noted(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        made.append(self)

    from_disk.FromDisk.__init__ = noted  # type: ignore[method-assign]
    VARIANTS[name][1]()

    def report(*_: object) -> None:
        found = asdict(made[-1].counts) if made else {}
        Path(os.environ[REPORT]).write_text(json.dumps(found))

    signal.signal(signal.SIGUSR1, report)
    Path(os.environ[REPORT]).unlink(missing_ok=True)
    sys.exit(command_line(["serve", *arguments, "--disable-frontend-multiprocessing"]))


def _nothing() -> None:
    """Leave all as it is."""


def _plain() -> None:
    """Let the system alone decide what is in memory."""
    from dovetail_plugins.packed_weights import residency

    residency.reason_against = lambda: "it is left out for comparison"


def _half_life(steps: float) -> Callable[[], None]:
    def change() -> None:
        from dovetail_plugins.packed_weights import from_disk

        from_disk.HALF_LIFE_STEPS = steps

    return change


VARIANTS: dict[str, tuple[str, Callable[[], None]]] = {
    "plain": ("mapping alone", _plain),
    "lru": ("resident, last used stay", _half_life(0.02)),
    "as_is": ("resident, as it is", _nothing),
    "lfu": ("resident, counts never fade", _half_life(1e6)),
    "whole": ("no limit", _nothing),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
    else:
        main()
