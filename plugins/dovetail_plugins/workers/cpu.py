"""CpuWorker: a rank on the machine's processors and main memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dovetail.config.rules.machine.platform import available_bytes
from dovetail.interfaces.plugin import Info
from dovetail_kernels.cpu import library as native
from dovetail_plugins.device_workers.device_worker import DeviceWorker
from dovetail_plugins.workers._second_team import SecondTeam
from dovetail_plugins.workers._torch import load_torch

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

MARGIN_BYTES = 512 << 20
"""Always left to the rest of the machine, whatever the engine may take."""


class CpuWorker(DeviceWorker):
    """Runs the model by torch's CPU operators."""

    info = Info(summary="the CPU and its main memory", devices=("cpu",))

    _second_team: SecondTeam | None = None

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a device type cannot be served."""
        return [] if query in (None, "cpu") else [f"runs on cpu, not on {query}"]

    def _open_device(self) -> torch.device:
        self._waits_awake = load_torch()
        import torch

        return torch.device("cpu")

    def _set_threads(self) -> None:
        """Give torch and the native kernels their threads."""
        import torch

        super()._set_threads()
        library, run = native.library(), self.run
        if library is None:
            log.info("matrix products run on torch: %s", native.missing_reason())
            return
        count = run.num_threads or torch.get_num_threads()
        place = 0 if run.processors else run.rank.local_rank  # bound ranks have their own cores
        cores = _pinned_cores(place, count) if run.pins_threads else None
        num_threads = library.set_threads(count, spin_us=run.thread_spin_us, cores=cores)
        log.info("native kernels: %s, %d threads", library.isa, num_threads)
        if self._waits_awake and num_threads > 1:
            self._second_team = SecondTeam()

    def shutdown(self) -> None:
        """Release the model, the cache and threads. May be called twice."""
        super().shutdown()
        if self._second_team is not None:
            self._second_team.close()

    def free_bytes(self) -> int:
        """Return this rank's share of the memory the system (or this container) can still give,
        less 512 MiB for other programs and less the bound of a largest step of each rank."""
        ranks = self.run.rank.local_size
        room = (available_bytes() - MARGIN_BYTES) // ranks - self._largest_step_bytes()
        return max(0, int(self.run.memory_share * room))


def _pinned_cores(rank: int, count: int) -> list[int] | None:
    """Return this rank's `count` cores among those the process may use; None if they run out."""
    cores = native.usable_cores()[rank * count : (rank + 1) * count]
    if len(cores) < count:
        log.warning("threads are not pinned: rank %d finds %d free cores", rank, len(cores))
        return None
    return cores
