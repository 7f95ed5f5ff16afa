"""What the machine gives in these minutes: read bandwidth and multiply peaks, through torch.

`python -m benchmarks.peers.probe THREADS` prints a JSON line a figure. `probe()` is the one
function the others call: a better probe replaces its command. Every figure is bounded in time: a
small call says how large a one may be measured, and where none fits the figure is told as skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
FIGURE_S = 0.8
"""How long one figure is measured."""
LIMIT_S = 60.0
"""After this the probe's process is ended, with the figures it has got."""
FIGURES = ("read_gb_s", "fp32_gflop_s", "bf16_gflop_s", "int8_gop_s")

Make = Callable[[int], Callable[[], object]]
"""Return the call to time, for a size."""


def probe(
    num_threads: int, command: Sequence[str] = (), limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """Return read_gb_s, fp32_gflop_s, bf16_gflop_s and int8_gop_s, from a process of its own.

    A figure that could not be had in time stands under "skipped" instead, with the reason. Units:
    1e9 bytes and 1e9 multiply or add operations per second, `num_threads` threads.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "PYTHONPATH": str(CHECKOUT)}
    own = [sys.executable, "-P", "-m", "benchmarks.peers.probe", str(num_threads)]
    with subprocess.Popen(
        [*(command or own)], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            text, why = process.communicate(timeout=limit_s)[0], "its process ended before it"
        except subprocess.TimeoutExpired:
            process.kill()
            text, why = process.communicate()[0], f"too slow: not reached in {limit_s:.0f} s"
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return told([json.loads(line) for line in lines], why)


def told(lines: Sequence[dict[str, Any]], why: str) -> dict[str, Any]:
    """Return the figures of all lines, and what was skipped; `why` is for those in none of them."""
    found = {name: value for line in lines for name, value in line.items()}
    numbers = {name: found[name] for name in FIGURES if isinstance(found.get(name), float)}
    skipped = {name: found.get(name, why) for name in FIGURES if name not in numbers}
    return numbers | ({"skipped": skipped} if skipped else {})


def seconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def best_s(run: Callable[[], object], limit_s: float) -> float:
    """Return the fastest of the runs that fit into a time, at least two."""
    times_s = [seconds(run), seconds(run)]
    while sum(times_s) < limit_s:
        times_s.append(seconds(run))
    return min(times_s)


def rate(
    make: Make, work: Callable[[int], float], sizes: Sequence[int], budget_s: float = FIGURE_S
) -> float | str:
    """Return work per second at the largest size of which two calls fit the budget; else why not.

    `sizes` ascend; the first is the small one that says how fast the rest will be, and is no
    measure itself.
    """
    small, *usable = sizes
    trial = make(small)
    trial_s = seconds(trial)
    if trial_s < budget_s:
        trial_s = min(trial_s, seconds(trial))  # the first call of a kind also sets things up
    each_s = {size: trial_s * work(size) / work(small) for size in usable}
    fitting = [size for size in usable if 2 * each_s[size] <= budget_s]
    if not fitting:
        return f"too slow: one call would take {each_s[usable[0]]:.1f} s"
    return work(fitting[-1]) / best_s(make(fitting[-1]), budget_s)


def measured(name: str) -> float | str:
    """Return one figure, or why there is none."""
    import torch

    def read(size: int) -> Callable[[], object]:
        return torch.ones(size).sum

    def multiply(side: int) -> Callable[[], object]:
        if name == "int8_gop_s":
            narrow = torch.randint(-127, 127, (side, side), dtype=torch.int8)
            return lambda: torch._int_mm(narrow, narrow)
        wide = torch.randn(side, side)
        numbers = wide.bfloat16() if name == "bf16_gflop_s" else wide
        return lambda: numbers @ numbers

    if name == "read_gb_s":
        return rate(read, lambda size: 4.0 * size, (1 << 22, 1 << 26, 1 << 28))
    return rate(multiply, lambda side: 2.0 * side**3, (256, 512, 1024, 2048))


def figures(measure: Callable[[str], float | str] = measured) -> Iterator[dict[str, float | str]]:
    """Yield each figure in 1e9 a second, as it is measured.

    Narrow products that are slower than half of float32's are torch's way around them, no peak of
    the machine, and are skipped.
    """
    floats = 0.0
    for name in FIGURES:
        found = measure(name)
        if not isinstance(found, str):
            found = round(found / 1e9, 1)
            floats = found if name == "fp32_gflop_s" else floats
            if name in FIGURES[2:] and found < floats / 2:
                found = f"too slow: torch has no fast product here ({found})"
        yield {name: found}


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    for line in figures():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
