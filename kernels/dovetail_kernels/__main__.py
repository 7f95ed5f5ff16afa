"""`python -m dovetail_kernels test|perf|support|compile|tune|probe`: cases checked and timed.

`compile` compiles Triton kernels for a GPU that need not be present; `tune` times tiles on a
present one, and with --write stores the best in the table; `probe` measures a machine's limits.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import torch

from dovetail_kernels import all_ops, load_op
from dovetail_kernels.check import check_case
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.cpu.probe import probe
from dovetail_kernels.gpu import interprets
from dovetail_kernels.gpu.facts import facts_of
from dovetail_kernels.gpu.offline import MAX_STACK_BYTES, Compiled, compile_all, triton_calls
from dovetail_kernels.gpu.table import write_entries
from dovetail_kernels.gpu.tune import OPS, choices_of, fastest, refusal, timer
from dovetail_kernels.op import Op
from dovetail_kernels.perf import print_times

COMMANDS = ("test", "perf", "support", "compile", "tune", "probe")


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands; return 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="python -m dovetail_kernels", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--op", action="append", help="an op's name; may be repeated")
    parser.add_argument(
        "--implementation",
        action="append",
        help="what test checks and perf times; may be repeated",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--capability", type=int, default=90, help="what compile compiles for")
    parser.add_argument("--write", action="store_true", help="tune keeps what it found")
    parser.add_argument("--most", type=int, default=1000, help="cases of an op that compile takes")
    parser.add_argument("--every", type=int, default=1, help="test checks each N-th case of an op")
    parser.add_argument(
        "--products", action="store_true", help="compile tells the matrix instructions of kernels"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "probe":
        return _probe()
    if chosen.command == "tune":
        return _tune(chosen.op or list(OPS), chosen.device, is_written=chosen.write)
    ops = [load_op(name) for name in chosen.op] if chosen.op else all_ops()
    device = torch.device(chosen.device)
    if chosen.command == "support":
        return _support(ops, device)
    if chosen.command == "compile":
        return _compile(ops, chosen.capability, chosen.most, tells_products=chosen.products)
    if chosen.command == "perf":
        print_times(ops, device, chosen.implementation or [])
        return 0
    return _test(ops, device, chosen.implementation or [], chosen.every)


def _test(ops: list[Op], device: torch.device, wanted: list[str], every: int) -> int:
    """Compare implementations with the reference in each `every`-th case: those wanted, all if
    there are none. The reference must be finite and stable.

    If Triton kernels are interpreted, only small cases run.
    """
    failed = passed = 0
    for op in ops:
        names = ["reference", *(i.name for i in op.implementations)]
        names = [name for name in names if not wanted or name in wanted]
        for case in (op.small_cases() if interprets() else op.cases())[::every]:
            for name in names:
                fault = check_case(op, case, name, device)
                passed += fault is None
                if fault is not None:
                    failed += 1
                    print(f"FAILED {op.name} {case.name} {case.dtype} {name}: {fault}")
    print(f"{passed} passed, {failed} failed on {device}")
    return 1 if failed else 0


def _compile(ops: list[Op], capability: int, max_cases: int, *, tells_products: bool) -> int:
    """Print what Triton kernels need on an absent GPU; return 1 if one does not compile."""
    faults = 0
    for op in ops:
        calls = triton_calls(op, max_cases)
        kernels: list[Compiled] = []
        for name, sizes, fault in compile_all(calls, capability):
            kernels += sizes
            problems = [] if fault is None else [fault]
            problems += [
                f"{one.name} spills {one.stack_bytes} bytes a thread: its tile is too large"
                for one in sizes
                if one.stack_bytes > MAX_STACK_BYTES
            ]
            faults += len(problems)
            for line in problems:
                print(f"FAILED {op.name} {name}: {line}")
        for one in kernels:
            products = one.products() if tells_products else ()
            more = f", {' '.join(products)}" if products else ""
            more += f", {one.stack_bytes} bytes of stack" if one.stack_bytes else ""
            print(
                f"{op.name:<18}{one.name:<14}{one.num_warps:>3} warps{one.registers:>5} registers"
                f"{one.shared_bytes:>8} bytes shared{more}"
            )
    print(f"compiled for {capability / 10}, {faults} failed")
    return 1 if faults else 0


def _tune(ops: list[str], device: str, *, is_written: bool) -> int:
    """Print which tiles are faster than the defaults here; return 1 if there is no GPU."""
    unknown = [f"{op} has no tiles to choose" for op in ops if op not in OPS]
    reason = refusal() or next(iter(unknown), None)
    if reason is not None:
        print(f"tune: {reason}")
        return 1
    name, time = facts_of(torch.device(device)).name, timer()
    for op in ops:
        entries: dict[str, dict[str, int]] = {}
        for choice in choices_of(op, device):
            found = fastest(op, choice, time)
            print(f"{name}  {op:<18}{choice.key:<30}{found or 'as it follows from the shape'}")
            if found is not None:
                entries[choice.key] = found
        if is_written:
            write_entries(name, op, entries)
    return 0


def _probe() -> int:
    """Print what this machine gives now as JSON."""
    native = library()
    if native is None:
        print(json.dumps({"reason": missing_reason()}))
        return 1
    print(json.dumps(asdict(probe(native))))
    return 0


def _support(ops: list[Op], device: torch.device) -> int:
    """Print which implementation runs each op on the device, and why the others do not."""
    for op in ops:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            lines = [
                f"{i.name}: {'; '.join(op.reasons_against(i, device.type, dtype)) or 'ok'}"
                for i in op.implementations
            ]
            support = " | ".join(["reference: ok", *lines])
            print(f"{op.name:<18}{str(dtype).removeprefix('torch.'):<10}{support}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
