"""How often processes wake up, as Linux counts it. Counted, not timed: another machine, or one that
is busy with something else, counts the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

counts_wake_ups = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="counts wake-ups in /proc"
)


def wake_ups(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep so far."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches:")
    )


def wake_ups_a_second(pids: Sequence[int], for_s: float = 5.0) -> float:
    """Return how often processes wake up while nobody asks them anything."""
    before = sum(map(wake_ups, pids))
    began_s = time.monotonic()
    time.sleep(for_s)
    return (sum(map(wake_ups, pids)) - before) / (time.monotonic() - began_s)
