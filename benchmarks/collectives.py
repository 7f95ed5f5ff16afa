"""Time of collectives between ranks of this machine: shared memory beside gloo, in one run.

Every rank is a process; blocks of calls of the two ways take turns. A line shows the median of rank
0's calls, their ratio, and what the fastest tenth of the calls takes: on a busy machine that
is nearer to what a quiet one gives. The floor is what a rank must take from the others, twice
(R - 1) / R of the bytes for an all-reduce and R - 1 times the bytes for an all-gather, at the speed
at which one thread copies as much within its caches. Bar: at most half of gloo's time for an
all-reduce of 8 KB and of 256 KB between two ranks.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.collectives [--ranks 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from dovetail.processes.process import Child, read_boot, spawn
from dovetail_kernels.collective import SharedMemoryRanks

KB = 1024
SIZES = (KB, 8 * KB, 64 * KB, 256 * KB, 1024 * KB, 4096 * KB, 16384 * KB)
BARS = (8 * KB, 256 * KB)
BAR = 0.5
ROUNDS = 20
ROUND_S = 0.01
"""A block of calls takes about so long."""
MAX_CALLS = 50
TIMEOUT_S = 300.0
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Call = Callable[[torch.Tensor], object]


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of a rank."""

    rank: int
    size: int
    folder: str
    dtype: str
    capacity_bytes: int


def main() -> int:
    """Measure as one rank; return the exit status."""
    boot = read_boot(Boot)
    dist.init_process_group(
        "gloo", init_method=f"file://{boot.folder}/gloo", rank=boot.rank, world_size=boot.size
    )
    ranks = SharedMemoryRanks(
        boot.folder,
        rank=boot.rank,
        size=boot.size,
        capacity_bytes=boot.capacity_bytes,
        timeout_s=TIMEOUT_S,
    )
    with ranks:
        headings = ("ours us", "gloo us", "ratio", "floor us", "ours 10 %", "gloo 10 %")
        _print(boot, "call", "bytes", *headings)
        _measure_all(ranks, boot)
    dist.destroy_process_group()
    return 0


def _measure_all(ranks: SharedMemoryRanks, boot: Boot) -> None:
    def barrier(_: torch.Tensor) -> None:
        ranks.barrier()

    def gloo_barrier(_: torch.Tensor) -> None:
        dist.barrier()

    _print(boot, "barrier", 0, *_cells(_times((barrier, gloo_barrier), torch.zeros(1)), 0.0))
    share = (boot.size - 1) / boot.size
    for name, moved in (("all_reduce", 2 * share), ("all_gather", boot.size - 1)):
        for num_bytes in SIZES:
            x = torch.zeros(num_bytes // DTYPES[boot.dtype].itemsize, dtype=DTYPES[boot.dtype])
            times = _times(_ways(name, ranks, x), x)
            bar = ""
            if name == "all_reduce" and num_bytes in BARS and boot.size == 2:
                ours, gloo = map(statistics.median, times)
                bar = "  within the bar" if ours <= BAR * gloo else "  OVER THE BAR"
            _print(boot, name, num_bytes, *_cells(times, moved * _copy_us(x)), bar)


def _cells(times: Sequence[Sequence[float]], floor_us: float) -> list[str]:
    """Return what a line says of the times of both ways."""
    ours, gloo = map(statistics.median, times)
    fast = [sorted(found)[len(found) // 10] for found in times]
    numbers = (ours * 1e6, gloo * 1e6, ours / gloo, floor_us, *(t * 1e6 for t in fast))
    places = (1, 1, 2, 1, 1, 1)
    return [f"{number:.{digits}f}" for number, digits in zip(numbers, places, strict=True)]


def _ways(name: str, ranks: SharedMemoryRanks, x: torch.Tensor) -> tuple[Call, Call]:
    """Return a collective by shared memory and by gloo."""
    if name == "all_reduce":
        return ranks.all_reduce, dist.all_reduce
    out = torch.empty((ranks.size, *x.shape), dtype=x.dtype)
    pieces = list(torch.empty_like(out))
    return lambda x: ranks.all_gather(x, out), lambda x: dist.all_gather(pieces, x)


def _times(ways: Sequence[Call], x: torch.Tensor) -> list[list[float]]:
    """Return the seconds of every call of each way; all ranks take as many."""
    times: list[list[float]] = [[] for _ in ways]
    counts = [_agreed_count(way, x) for way in ways]
    for _ in range(ROUNDS):
        for way, count, found in zip(ways, counts, times, strict=True):
            way(x)  # all are awake
            for _ in range(count):
                start_s = time.perf_counter()
                way(x)
                found.append(time.perf_counter() - start_s)
    return times


def _agreed_count(way: Call, x: torch.Tensor) -> int:
    """Return how many calls take ROUND_S, as rank 0 finds it."""
    way(x)
    start_s = time.perf_counter()
    for _ in range(5):
        way(x)
    count = torch.tensor([5 * ROUND_S / (time.perf_counter() - start_s)])
    dist.broadcast(count, 0)
    return max(1, min(MAX_CALLS, int(count)))


def _copy_us(x: torch.Tensor) -> float:
    """Return the time of copying x, of many times the best but a few."""
    to = torch.empty_like(x)
    times = []
    for _ in range(100):
        start_s = time.perf_counter()
        to.copy_(x)
        times.append(time.perf_counter() - start_s)
    return sorted(times)[5] * 1e6


def _print(boot: Boot, *cells: object) -> None:
    if boot.rank == 0:
        print("".join(f"{cell!s:>12}" for cell in cells), flush=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks and wait for them; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.collectives", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--capacity-bytes", type=int, default=1 << 20)
    asked = parser.parse_args(arguments)
    print(f"{asked.ranks} ranks, {os.cpu_count()} processors, {asked.dtype}", flush=True)
    children: list[Child] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(asked.ranks):
                boot = Boot(
                    rank=rank,
                    size=asked.ranks,
                    folder=folder,
                    dtype=asked.dtype,
                    capacity_bytes=asked.capacity_bytes,
                )
                variables = {"OMP_NUM_THREADS": "1"}
                if sys.platform == "linux":
                    variables["GLOO_SOCKET_IFNAME"] = "lo"
                module = f"benchmarks.{Path(__file__).stem}"
                children.append(spawn(module, boot, stdout=1, variables=variables))
            return max(abs(child.wait(TIMEOUT_S) or 0) for child in children)
        finally:
            for child in children:
                child.end(0.0)


if __name__ == "__main__":
    sys.exit(run())
