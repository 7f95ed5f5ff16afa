"""What the machine gives in these minutes: read bandwidth and multiply peaks, through torch.

`probe.py THREADS` prints one JSON line. `probe()` is the one function the others call: a better
probe replaces its command. Knows no engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable


def probe(num_threads: int) -> dict[str, float]:
    """Return read_gb_s, fp32_gflop_s, bf16_gflop_s and int8_gop_s, from a process of its own.

    Units: 1e9 bytes and 1e9 multiply or add operations per second, `num_threads` threads. Under
    ATEN_CPU_CAPABILITY=avx2 only the first two: torch has no fast narrow products there.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
    command = [sys.executable, __file__, str(num_threads)]
    answer = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    return {name: float(value) for name, value in json.loads(answer.stdout).items()}


def best_s(run: Callable[[], object], limit_s: float = 0.8) -> float:
    """Return the fastest of the runs that fit into a time, at least three."""
    times_s: list[float] = []
    while len(times_s) < 3 or sum(times_s) < limit_s:
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    buffer = torch.ones(1 << 28)  # 1 GiB of float32
    read_s = best_s(buffer.sum)
    del buffer
    side = 2048
    operations = 2 * side**3
    floats = torch.randn(side, side)
    figures = {
        "read_gb_s": 4 * (1 << 28) / read_s / 1e9,
        "fp32_gflop_s": operations / best_s(lambda: floats @ floats) / 1e9,
    }
    if os.environ.get("ATEN_CPU_CAPABILITY") != "avx2":
        halves = floats.bfloat16()
        narrow = torch.randint(-127, 127, (side, side), dtype=torch.int8)
        figures["bf16_gflop_s"] = operations / best_s(lambda: halves @ halves) / 1e9
        figures["int8_gop_s"] = operations / best_s(lambda: torch._int_mm(narrow, narrow)) / 1e9
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
