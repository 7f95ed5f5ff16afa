"""Exchanges of tokens between engines that share experts: each --all2all-backend, in turns.

Every rank is a process with tokens of its own and routers that pick evenly; what experts make of a
token costs next to nothing here. A line shows, for one layer and one rank, the bytes sent to others
and the median and the fastest tenth of rank 0's times.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.all2all [--ranks 2] [--size 2048]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dovetail import registry
from dovetail.interfaces.all2all import All2All
from dovetail.interfaces.communicator import Communicator, Membership
from dovetail.processes.process import Child, read_boot, spawn

TOKENS = (1, 16, 256)
COMMUNICATORS = ("shared_memory", "gloo")
BACKENDS = ("allgather_reducescatter", "all_to_all")
ROUNDS, CALLS = 30, 3
TIMEOUT_S = 500.0


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of a rank."""

    rank: int
    num_ranks: int
    folder: str
    size: int
    num_experts: int
    num_picked: int


class Counted:
    """A communicator that counts the bytes that this rank sends to others."""

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner
        self.rank, self.size, self.device = inner.rank, inner.size, inner.device
        self.num_bytes = 0

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Gather, and count one tensor for each other rank."""
        self.num_bytes += (self.size - 1) * x.nbytes
        return self._inner.all_gather(x)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Scatter sums, and count a part for each other rank."""
        self.num_bytes += (self.size - 1) * x.nbytes // self.size
        return self._inner.reduce_scatter(x)

    def all_to_all_rows(self, x: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Exchange rows, and count those for other ranks."""
        row_bytes = x.nbytes // len(x) if len(x) else 0
        own = counts[self.rank]
        self.num_bytes += row_bytes * (sum(own) - own[self.rank])
        return self._inner.all_to_all_rows(x, counts)


def main() -> int:
    """Measure as one rank; return the exit status."""
    boot = read_boot(Boot)
    ways: dict[tuple[str, str], tuple[Counted, All2All]] = {}
    groups: list[Communicator] = []
    for name in COMMUNICATORS:
        member = Membership(
            rank=boot.rank, size=boot.num_ranks, address=f"file://{boot.folder}/{name}#x"
        )
        group: Communicator = registry.make(registry.choose("communicator", name), member)
        groups.append(group)
        for backend in BACKENDS:
            counted: Any = Counted(group)
            made: All2All = registry.make(registry.choose("all2all", backend), counted)
            ways[name, backend] = (counted, made)
    for num_tokens in TOKENS:
        _measure(boot, num_tokens, ways)
    for group in groups:
        group.close()
    return 0


def _measure(
    boot: Boot, num_tokens: int, ways: dict[tuple[str, str], tuple[Counted, All2All]]
) -> None:
    """Let the ways take turns, and print a line for each."""
    times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    num_slots = boot.num_experts // boot.num_ranks
    generator = torch.Generator().manual_seed(boot.rank)
    x = torch.randn(num_tokens, boot.size, generator=generator)
    weights = torch.rand(num_tokens, boot.num_picked, generator=generator)
    calls = 0
    for _ in range(ROUNDS):
        draws = torch.rand(num_tokens, boot.num_experts, generator=generator)
        places = draws.topk(boot.num_picked).indices
        for way, (counted, made) in ways.items():
            made.begin_step(num_tokens)
            if not calls:
                counted.num_bytes = 0
            for _ in range(CALLS):
                start_s = time.perf_counter()
                made.exchange(x, weights, places, num_slots, _compute)
                times[way].append(time.perf_counter() - start_s)
        calls += CALLS
    for (name, backend), (counted, _) in ways.items():
        found = sorted(times[name, backend])
        _print(
            boot, num_tokens, name, backend, f"{counted.num_bytes / calls / 1024:.1f}",
            f"{statistics.median(found) * 1e6:.0f}", f"{found[len(found) // 10] * 1e6:.0f}",
        )  # fmt: skip


def _compute(x: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return each token times the weights of its picks here."""
    return x * torch.where(slots >= 0, weights, 0.0).sum(1, keepdim=True)


def _print(boot: Boot, *cells: object) -> None:
    if boot.rank == 0:
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks and wait for them; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.all2all", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--picked", type=int, default=8)
    asked = parser.parse_args(arguments)
    print(f"{asked.ranks} ranks, {os.cpu_count()} processors, E {asked.size}, float32", flush=True)
    print("| tokens of a rank | communicator | exchange | KB sent | us | fastest tenth |")
    print("|---|---|---|---|---|---|", flush=True)
    children: list[Child] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(asked.ranks):
                boot = Boot(
                    rank=rank, num_ranks=asked.ranks, folder=folder, size=asked.size,
                    num_experts=asked.experts, num_picked=asked.picked,
                )  # fmt: skip
                variables = {"OMP_NUM_THREADS": "1"}
                module = f"benchmarks.{Path(__file__).stem}"
                children.append(spawn(module, boot, stdout=1, variables=variables))
            return max(abs(child.wait(TIMEOUT_S) or 0) for child in children)
        finally:
            for child in children:
                child.end(0.0)


if __name__ == "__main__":
    sys.exit(run())
