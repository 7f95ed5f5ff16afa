"""SecondTeam: makes OpenMP's idle threads go to sleep soon, in a process that has loaded torch.

After each of torch's operations GNU's OpenMP lets its other threads spin, for some milliseconds of
processor time each, unless its variables said otherwise when it was loaded. That takes the cores
from native kernels, which have their own threads. If a process has more OpenMP threads than
processors, they wait for 1,000 rounds instead of about 300,000; a second team of as many threads,
none of which ever has work again, achieves that.

Source: GOMP_SPINCOUNT, https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
"""

from __future__ import annotations

import threading

GRAIN = 32768
"""Elements that torch gives a thread at least."""


class SecondTeam:
    """The threads of a team that has no work, until `close`."""

    def __init__(self) -> None:
        self._is_there, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, name="dovetail-openmp", daemon=True)
        self._thread.start()
        self._is_there.wait()

    def close(self) -> None:
        """Let the threads end. May be called twice."""
        self._over.set()
        self._thread.join()

    def _hold(self) -> None:
        """Be the first thread of a team, which one operation makes."""
        import torch

        try:
            torch.zeros(GRAIN * torch.get_num_threads()).add_(1)
        finally:
            self._is_there.set()
        self._over.wait()
