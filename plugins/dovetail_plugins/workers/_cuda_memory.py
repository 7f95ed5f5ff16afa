"""CudaMemory: a CUDA device's memory, in four calls that tests replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class CudaMemory:
    """The memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def release(self) -> None:
        """Wait for the device and return torch's spare blocks to it."""
        import torch

        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def free_and_total(self) -> tuple[int, int]:
        """Return the free bytes and all bytes of the device, other programs' use counted."""
        import torch

        free, total = torch.cuda.mem_get_info(self._device)
        return free, total

    def peak_of(self, function: Callable[[], object]) -> int:
        """Run a function; return the peak bytes of its tensors, on top of existing ones."""
        import torch

        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        function()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before
