"""Rank: a process that makes collectives as it is told, one command and one answer at a time.

Commands and answers are lines of JSON on its channel. `Ranks` is the parent's side.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import torch

from dovetail.processes.process import Child, open_channel, read_boot, spawn
from dovetail_kernels.collective import RankError, SharedMemoryRanks
from dovetail_kernels.collective.cases import cases, check_case, random_cases
from dovetail_kernels.cpu.library import Library, library
from dovetail_kernels.cpu.program import Pool, record

ANSWER_TIMEOUT_S = 60.0


class Ranks:
    """Processes that serve as ranks of one group after the other."""

    def __init__(self, count: int) -> None:
        self.children: list[Child] = []
        try:
            for rank in range(count):
                child = spawn(__name__, rank, has_channel=True)
                self.children.append(child)
                assert child.channel is not None
                child.channel.settimeout(ANSWER_TIMEOUT_S)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the processes."""
        for child in self.children:
            child.end(0.0)

    def tell(self, ranks: Iterable[int], /, **command: Any) -> None:
        """Send a command to some ranks."""
        for rank in ranks:
            self._channel(rank).sendall(json.dumps(command | {"rank": rank}).encode() + b"\n")

    def answers(self, ranks: Iterable[int]) -> list[Any]:
        """Return an answer of each rank."""
        found = []
        for rank in ranks:
            line = b""
            while not line.endswith(b"\n"):
                part = self._channel(rank).recv(1 << 16)
                assert part, f"rank {rank} has ended"
                line += part
            found.append(json.loads(line))
        return found

    def ask(self, size: int, /, **command: Any) -> list[Any]:
        """Send a command to the first `size` ranks and return their answers."""
        self.tell(range(size), **command)
        return self.answers(range(size))

    def _channel(self, rank: int) -> Any:
        return self.children[rank].channel


class Worker:
    """The rank's side: one method for every command."""

    def __init__(self) -> None:
        self.ranks: SharedMemoryRanks | None = None

    @property
    def group(self) -> SharedMemoryRanks:
        assert self.ranks is not None, "no group was joined"
        return self.ranks

    def do_join(self, rank: int, isa: str | None = None, **settings: Any) -> str:
        """Leave the group, if there is one, and join another."""
        self.do_close()
        source = library()
        if source is not None and isa is not None:
            source = Library(source.path, isa)
        self.ranks = SharedMemoryRanks(rank=rank, source=source, **settings)
        return "joined"

    def do_close(self, **_: Any) -> str:
        """Leave the group."""
        if self.ranks is not None:
            self.ranks.close()
        self.ranks = None
        return "closed"

    def do_cases(self, **_: Any) -> list[str]:
        """Check the cases of the collectives."""
        return [fault for case in cases() for fault in check_case(self.group, case)]

    def do_random(self, rank: int, seed: int) -> list[str]:
        """Check random cases, now and then late by another time than the other ranks."""
        faults = []
        for i, case in enumerate(random_cases(seed, 60, 200_000)):
            if (i + rank) % 7 == 0:
                time.sleep(0.001 * rank)
            faults += check_case(self.group, case)
        return faults

    def do_program(self, rank: int) -> bool:
        """Return whether recorded calls do the same again on new numbers."""
        x = torch.zeros(4000)
        with torch.inference_mode():
            program = record(lambda: self.group.all_gather(self.group.all_reduce(x)), Pool())
            found = []
            for value in range(3):
                x.fill_(value + rank)
                program.run()
                total = self.group.size * value + sum(range(self.group.size))
                found.append(bool((program.output == total).all()))
            self.group.barrier()
            if rank == 0:
                self.group.close()
                return all(found)
            try:
                program.run()
            except RankError as error:
                found.append(error.rank == 0)
            else:
                found.append(False)
        return all(found)

    def do_sum(self, count: int, **_: Any) -> list[float]:
        """Return the ends of a sum of ones."""
        total = self.group.all_reduce(torch.ones(count))
        return [float(total[0]), float(total[-1])]

    def do_gather(self, count: int, **_: Any) -> int:
        """Return how many values were gathered."""
        return self.group.all_gather(torch.ones(count)).numel()

    def do_sums_for_ever(self, count: int, **_: Any) -> None:
        """Add up until that fails."""
        x = torch.zeros(count)
        while True:
            self.group.all_reduce(x)

    def answer(self, command: dict[str, Any]) -> Any:
        """Do a command; return its answer, or what kind of error whose rank is the reason of."""
        start_s = time.monotonic()
        try:
            return getattr(self, f"do_{command.pop('do')}")(**command)
        except RankError as error:
            seconds = time.monotonic() - start_s
            return {"text": str(error), "rank": error.rank, "seconds": seconds}


def main() -> int:
    """Serve until the parent closes the channel."""
    read_boot(int)
    worker = Worker()
    with open_channel() as channel, channel.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            stream.write(json.dumps(worker.answer(json.loads(line))) + "\n")
            stream.flush()
    worker.do_close()
    return 0
