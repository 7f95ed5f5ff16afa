"""`python -m dovetail_kernels test|perf|support`: the same cases checked, timed, or tabulated."""

from __future__ import annotations

import argparse
import sys

import torch

from dovetail_kernels import Op, all_ops, load_op
from dovetail_kernels.check import check_case, time_case


def main(arguments: list[str] | None = None) -> int:
    """Run one of the three commands; return 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="python -m dovetail_kernels", description=__doc__)
    parser.add_argument("command", choices=("test", "perf", "support"))
    parser.add_argument("--op", action="append", help="an op's name; may be repeated")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(arguments)
    ops = [load_op(name) for name in chosen.op] if chosen.op else all_ops()
    device = torch.device(chosen.device)
    if chosen.command == "support":
        return _support(ops, device)
    if chosen.command == "perf":
        return _perf(ops, device)
    return _test(ops, device)


def _test(ops: list[Op], device: torch.device) -> int:
    """Compare every implementation with the reference; the reference must be finite and stable."""
    failed = passed = 0
    for op in ops:
        for case in op.cases():
            for name in ("reference", *(i.name for i in op.implementations)):
                fault = check_case(op, case, name, device)
                passed += fault is None
                if fault is not None:
                    failed += 1
                    print(f"FAILED {op.name} {case.name} {case.dtype} {name}: {fault}")
    print(f"{passed} passed, {failed} failed on {device}")
    return 1 if failed else 0


def _perf(ops: list[Op], device: torch.device) -> int:
    """Print the median time of each case and what it moves and computes per second."""
    print(f"{'op':<18}{'case':<34}{'implementation':<16}{'us':>10}{'GB/s':>8}{'GFLOP/s':>9}")
    for op in ops:
        for case in op.cases():
            for name in ("reference", *(i.name for i in op.implementations)):
                seconds = time_case(op, case, name, device)
                if seconds is None:
                    continue
                rates = f"{case.moved_bytes / seconds / 1e9:8.2f}{case.flops / seconds / 1e9:9.2f}"
                label = f"{case.name} {case.dtype}".replace("torch.", "")
                print(f"{op.name:<18}{label:<34}{name:<16}{seconds * 1e6:10.1f}{rates}")
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
