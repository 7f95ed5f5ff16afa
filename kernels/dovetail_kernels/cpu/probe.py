"""Measures the machine's limits: read bandwidth and multiply-adds, on the kernels' own threads."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

import torch

from dovetail_kernels.cpu.library import Library

READ_BYTES = 1 << 29
FMA_ROUNDS = 20000
CHAINS = 12
TASKS_PER_THREAD = 8


class ProbeArgs(ctypes.Structure):
    """See probe.cpp."""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
        ("out", ctypes.c_void_p),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes and floating-point operations per second, the best of some short runs.

    `tile_flops_per_s`: of bfloat16 by AMX, None without it; twice that of bytes.
    """

    threads: int
    isa: str
    read_bytes_per_s: float
    flops_per_s: float
    tile_flops_per_s: float | None


def probe(library: Library, *, repeats: int = 5) -> Limits:
    """Measure for about half a second."""
    memory = torch.empty(READ_BYTES // 4)
    out = torch.zeros(16 * 256)
    args = ProbeArgs(memory.data_ptr(), READ_BYTES, FMA_ROUNDS, out.data_ptr())
    library.kernel("probe_fill", ProbeArgs)(ctypes.byref(args))
    read, fma = library.kernel("probe_read", ProbeArgs), library.kernel("probe_fma", ProbeArgs)
    lanes = fma(ctypes.byref(args))
    threads = library.num_threads()
    read_s = min(_time(read, args) for _ in range(repeats))
    fma_s = min(_time(fma, args) for _ in range(repeats))
    rounds = threads * TASKS_PER_THREAD * FMA_ROUNDS
    tiles = library.kernel("probe_tiles", ProbeArgs)
    of_tiles = rounds * tiles(ctypes.byref(args))
    tiles_s = min(_time(tiles, args) for _ in range(repeats))
    return Limits(
        threads=threads,
        isa=library.isa,
        read_bytes_per_s=READ_BYTES / read_s,
        flops_per_s=rounds * CHAINS * lanes * 2 / fma_s,
        tile_flops_per_s=of_tiles / tiles_s if of_tiles else None,
    )


def _time(kernel: object, args: ProbeArgs) -> float:
    start_s = time.perf_counter()
    kernel(ctypes.byref(args))  # type: ignore[operator]
    return time.perf_counter() - start_s
