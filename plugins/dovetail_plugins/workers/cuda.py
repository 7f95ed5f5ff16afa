"""CudaWorker: a rank on one NVIDIA GPU."""

from __future__ import annotations

import ctypes
from importlib import metadata
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info
from dovetail_plugins.workers._device_worker import DeviceWorker

if TYPE_CHECKING:
    import torch

MARGIN_BYTES = 256 << 20
"""Left for the driver, cuBLAS workspaces and fragmentation."""


class CudaWorker(DeviceWorker):
    """Runs the model by torch's CUDA operators; the rank's number picks the GPU."""

    info = Info(summary="one NVIDIA GPU", requires=("torch",), devices=("cuda",))

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why no CUDA device can be used here, without importing torch."""
        reason = super().unavailable_reason()
        if reason is not None:
            return reason
        if metadata.version("torch").endswith("+cpu"):
            return "the installed torch is built for CPUs only. Fix: pip install torch with CUDA"
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no NVIDIA driver is installed. Fix: install it, or use --device cpu"
        return None

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a device type cannot be served."""
        return [] if query in (None, "cuda") else [f"runs on cuda, not on {query}"]

    def _open_device(self) -> torch.device:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.run.rank.rank >= count:
            raise ConfigError(
                f"rank {self.run.rank.rank} needs a GPU of its own, torch sees {count}",
                where="--device",
                fix="use fewer ranks, or check CUDA_VISIBLE_DEVICES",
            )
        device = torch.device("cuda", self.run.rank.rank)
        torch.cuda.set_device(device)
        return device

    def free_bytes(self) -> int:
        """Return the device memory free once torch's own spare blocks are given back, less
        256 MiB and the bound of a largest step."""
        import torch

        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(0, free - MARGIN_BYTES - self._largest_step_bytes())

    def shutdown(self) -> None:
        """Give the model, the cache and torch's spare blocks back. May be called twice."""
        import torch

        super().shutdown()
        torch.cuda.empty_cache()
