"""`python -m dovetail_kernels test|perf|support|compile|probe`: cases checked, timed, tabulated.

`compile` makes Triton kernels for a GPU that need not be here; `probe` tells a machine's limits.
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
from dovetail_kernels.gpu.offline import Compiled, compile_all, triton_calls
from dovetail_kernels.op import Op
from dovetail_kernels.perf import print_times


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands; return 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="python -m dovetail_kernels", description=__doc__)
    parser.add_argument("command", choices=("test", "perf", "support", "compile", "probe"))
    parser.add_argument("--op", action="append", help="an op's name; may be repeated")
    parser.add_argument(
        "--implementation", action="append", help="what perf times; may be repeated"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--capability", type=int, default=90, help="what compile compiles for")
    parser.add_argument("--most", type=int, default=1000, help="cases of an op that compile takes")
    chosen = parser.parse_args(arguments)
    if chosen.command == "probe":
        return _probe()
    ops = [load_op(name) for name in chosen.op] if chosen.op else all_ops()
    device = torch.device(chosen.device)
    if chosen.command == "support":
        return _support(ops, device)
    if chosen.command == "compile":
        return _compile(ops, chosen.capability, chosen.most)
    if chosen.command == "perf":
        print_times(ops, device, chosen.implementation or [])
        return 0
    return _test(ops, device)


def _test(ops: list[Op], device: torch.device) -> int:
    """Compare every implementation with the reference; the reference must be finite and stable.

    Where Triton kernels are interpreted, small cases do.
    """
    failed = passed = 0
    for op in ops:
        for case in op.small_cases() if interprets() else op.cases():
            for name in ("reference", *(i.name for i in op.implementations)):
                fault = check_case(op, case, name, device)
                passed += fault is None
                if fault is not None:
                    failed += 1
                    print(f"FAILED {op.name} {case.name} {case.dtype} {name}: {fault}")
    print(f"{passed} passed, {failed} failed on {device}")
    return 1 if failed else 0


def _compile(ops: list[Op], capability: int, most: int) -> int:
    """Print what Triton kernels take on a GPU that is not here; return 1 where one cannot be."""
    faults = 0
    for op in ops:
        calls = triton_calls(op, most)
        kernels: list[Compiled] = []
        for name, found, fault in compile_all(calls, capability):
            kernels += found
            faults += fault is not None
            if fault is not None:
                print(f"FAILED {op.name} {name}: {fault}")
        for one in kernels:
            more = f", {' '.join(one.products)}" if one.products else ""
            more += f", {one.stack_bytes} bytes of stack" if one.stack_bytes else ""
            print(
                f"{op.name:<18}{one.name:<14}{one.num_warps:>3} warps{one.registers:>5} registers"
                f"{one.shared_bytes:>8} bytes shared{more}"
            )
    print(f"compiled for {capability / 10}, {faults} failed")
    return 1 if faults else 0


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
            told = " | ".join(["reference: ok", *lines])
            print(f"{op.name:<18}{str(dtype).removeprefix('torch.'):<10}{told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
