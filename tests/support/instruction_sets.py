"""Checks the cases of every op on each instruction set of this machine, as a script: all on the
best one, and on each lower one a fifth of each op's, another one for each (TESTS=full: all).

References are the same for all sets, so they are computed once: each set then has a process forked
from the one that has them. The script begins without the native library, which each child loads.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from dovetail_kernels import all_ops
from dovetail_kernels.check import check_case, results_of
from dovetail_kernels.cpu import recipe
from dovetail_kernels.cpu.library import ISA_VARIABLE, _attempt, library
from dovetail_kernels.op import REFERENCE, Arguments, Case, Op
from support.samples import sample_of

CPU = torch.device("cpu")
NATIVE = "native"
PARTS = sample_of(1, 5)


@dataclass(frozen=True)
class Known:
    """A case of an op with what its reference computes, and arguments for one check of it."""

    op: Op
    case: Case
    wanted: list[torch.Tensor]

    @classmethod
    def of(cls, op: Op, case: Case) -> Known:
        made = iter([case.build(CPU), case.build(CPU)])

        def build(device: torch.device) -> Arguments:
            return next(made, None) or case.build(device)

        wanted = results_of(op.reference, case, case.build(CPU))
        return cls(op, replace(case, build=build), wanted)

    def faults(self, *, is_best: bool, tries_reference: bool) -> Iterator[str]:
        """Yield what is wrong with the native kernel, on the best set also with all others, and
        with a reference called once more."""
        others = [i.name for i in self.op.implementations if i.name != NATIVE and is_best]
        for name in (NATIVE, *others, *([REFERENCE] if tries_reference else [])):
            fault = check_case(self.op, self.case, name, CPU, self.wanted)
            if fault is not None:
                yield f"{self.op.name} {self.case.name} {self.case.dtype} {name}: {fault}"


def part(isa: str, known: Sequence[Known]) -> list[Known]:
    """Return the cases of an op that a lower set tries."""
    return random.Random(isa).sample(known, -(-len(known) // PARTS))


def checked(isa: str, known: Sequence[Known], *, is_best: bool) -> int:
    """Return the status of a process that checks one set, after it has printed what is wrong."""
    os.environ[ISA_VARIABLE] = isa
    native = library()
    assert native is not None and native.isa == isa, isa
    faults = []
    for number, one in enumerate(known):
        tries_reference = is_best and number % PARTS == 0
        found = one.faults(is_best=is_best, tries_reference=tries_reference)
        faults += [f"{isa}: {fault}" for fault in found]
    print(*faults, f"{isa}: {len(known)} cases, {len(faults)} faults", sep="\n", flush=True)
    return bool(faults)


def main() -> int:
    torch.set_num_threads(1)  # a fork has no other
    by_op = [[Known.of(op, case) for case in op.cases()] for op in all_ops()]
    assert _attempt.cache_info().currsize == 0, "the library is loaded, with its set"
    isas = recipe.source_sets()
    statuses = []
    for isa in isas:
        child = os.fork()
        if child == 0:
            is_best = isa == isas[-1]
            chosen = [one for known in by_op for one in (known if is_best else part(isa, known))]
            os._exit(checked(isa, chosen, is_best=is_best))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
