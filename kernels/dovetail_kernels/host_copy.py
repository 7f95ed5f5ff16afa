"""HostCopy: copies of tensors from a device to the host, started without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class HostCopy:
    """Tensors on their way to the host. `wait` returns them in order."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = [_to_host(tensor) for tensor in tensors]
        if tensors[0].device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[np.ndarray]:
        """Return the tensors as arrays once all have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
