"""CudaWorker: a rank on one NVIDIA GPU.

Steps are queued on the device and read later, so the host may be one step ahead.
"""

from __future__ import annotations

import ctypes
import logging
from importlib import metadata
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info
from dovetail_plugins.device_workers.device_worker import DeviceWorker
from dovetail_plugins.workers._cuda_memory import CudaMemory

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

MARGIN_BYTES = 256 << 20
"""Left for the driver, cuBLAS workspaces and fragmentation."""


class CudaWorker(DeviceWorker):
    """Runs the model on a GPU; the rank's number picks it."""

    info = Info(summary="one NVIDIA GPU", requires=("torch",), devices=("cuda",))
    capabilities = DeviceWorker.capabilities | {"overlapped_steps"}

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why no CUDA device can be used here, without importing torch."""
        reason = super().unavailable_reason()
        if reason is not None:
            return reason
        if metadata.version("torch").endswith("+cpu"):
            return "the installed torch runs on CPUs only. Fix: install a torch with CUDA."
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no NVIDIA driver is installed. Fix: install it, or use --device cpu."
        return None

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a device type cannot be served."""
        return [] if query in (None, "cuda") else [f"runs on cuda, not on {query}"]

    def _open_device(self) -> torch.device:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.run.rank.local_rank >= count:
            is_stage = self.run.rank.tensor_size == 1 and self.run.rank.num_stages > 1
            raise ConfigError(
                f"rank {self.run.rank.local_rank} needs its own GPU, but torch sees only {count}",
                where="--pipeline-parallel-size" if is_stage else "--tensor-parallel-size",
                fix=f"use at most {max(1, count)} ranks, or check CUDA_VISIBLE_DEVICES.",
            )
        device = torch.device("cuda", self.run.rank.local_rank)
        torch.cuda.set_device(device)
        self.memory = CudaMemory(device)
        return device

    def free_bytes(self) -> int:
        """Return the rest of this engine's share of the device's memory, without 256 MiB, all
        memory in use, the media encodings and a largest step's memory, which is run and measured.
        It is never more than the free memory."""
        largest = self.runner.largest_step_bytes(self.memory.peak_of)
        self.memory.release()
        free, total = self.memory.free_and_total()
        share = int(self.run.memory_share * total) - (total - free)
        room = min(share, free) - MARGIN_BYTES - largest - self.run.encodings_bytes
        log.info(
            "GPU memory: %.2f GiB, %.2f in use, %.2f for the largest step and graphs, %.2f "
            "for the KV cache",
            *(n / 2**30 for n in (total, total - free, largest, max(0, room))),
        )
        return max(0, room)

    def _release_memory(self) -> None:
        super()._release_memory()
        self.memory.release()

    def shutdown(self) -> None:
        """Release the model, the cache and torch's spare blocks. May be called twice."""
        super().shutdown()
        self.memory.release()
