"""perf: times the cases of an op, and compares them with the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail_kernels.check import time_case
from dovetail_kernels.cpu.library import library
from dovetail_kernels.cpu.probe import Limits, probe
from dovetail_kernels.op import Case, Op

HEADINGS = ("op", "case", "implementation", "us", "GB/s", "GFLOP/s", "of read", "of fma")
WIDTHS = (-18, -46, -15, 10, 8, 9, 9, 8)


def print_times(ops: Sequence[Op], device: torch.device, wanted: Sequence[str]) -> None:
    """Print the median time of each case; `wanted` implementations only, all if it is empty."""
    native = library()
    limits = None if native is None or device.type != "cpu" else probe(native)
    if limits is not None:
        read, flops = limits.read_bytes_per_s / 1e9, limits.flops_per_s / 1e9
        print(
            f"{limits.isa}, {limits.threads} threads: read {read:.1f} GB/s, fma {flops:.0f} GFLOP/s"
        )
    print(_row(HEADINGS))
    for op in ops:
        for case in op.perf_cases():
            for name in ("reference", *(i.name for i in op.implementations)):
                seconds = (
                    None if wanted and name not in wanted else time_case(op, case, name, device)
                )
                if seconds is not None:
                    print(_row(_cells(op, case, name, seconds, limits)), flush=True)


def _cells(op: Op, case: Case, name: str, seconds: float, limits: Limits | None) -> list[str]:
    moved, flops = case.moved_bytes / seconds, case.flops / seconds
    label = f"{case.name} {case.dtype}".replace("torch.", "")
    cells = [
        op.name,
        label,
        name,
        f"{seconds * 1e6:.1f}",
        f"{moved / 1e9:.2f}",
        f"{flops / 1e9:.2f}",
    ]
    if limits is not None:
        shares = moved / limits.read_bytes_per_s, flops / limits.flops_per_s
        cells += [f"{share:.0%}" for share in shares]
    return cells


def _row(cells: Sequence[str]) -> str:
    """Return cells in columns; a negative width is flush left."""
    return "".join(
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, width in zip(cells, WIDTHS, strict=False)
    )
