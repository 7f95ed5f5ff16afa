"""CpuWorker: a rank on the machine's processors and main memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.plugin import Info
from dovetail_plugins.workers._device_worker import DeviceWorker

if TYPE_CHECKING:
    import torch

MARGIN_BYTES = 512 << 20
"""Left to the rest of the machine whatever the engine is told to take."""
CGROUP_FILES = (
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
    ),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use and make-up of a control group's memory, in its two versions."""
CACHE_WORDS = ("active_file", "inactive_file")


class CpuWorker(DeviceWorker):
    """Runs the model by torch's CPU operators."""

    info = Info(summary="the machine's processors and main memory", devices=("cpu",))

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a device type cannot be served."""
        return [] if query in (None, "cpu") else [f"runs on cpu, not on {query}"]

    def _open_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def free_bytes(self) -> int:
        """Return the memory the system (or this container) can still give, less 512 MiB for
        other programs and less the bound of a largest step."""
        import psutil

        available = min([psutil.virtual_memory().available, *container_rooms()])
        return max(0, available - MARGIN_BYTES - self._largest_step_bytes())


def container_rooms() -> list[int]:
    """Return the bytes that this process's control group may still take, where it is limited.

    Cached file content counts as free: the kernel drops it when memory is needed.
    """
    rooms = []
    for limit_path, used_path, stat_path in CGROUP_FILES:
        try:
            limit = int(Path(limit_path).read_text())
            used = int(Path(used_path).read_text()) - _cached_bytes(Path(stat_path).read_text())
        except (OSError, ValueError):
            continue  # no such control group, or "max": not limited
        rooms.append(max(0, limit - used))
    return rooms


def _cached_bytes(stat: str) -> int:
    """Return the file cache told of in a memory.stat."""
    pairs = (line.split() for line in stat.splitlines())
    return sum(int(value) for word, value in pairs if word in CACHE_WORDS)
