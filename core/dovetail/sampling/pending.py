"""PendingDraws: a step's draws in progress, before the host knows them.

Operations on the device may use `tokens` immediately, so that the next step can start; `collect`
waits and returns the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch

from dovetail.sampling.step import Draws
from dovetail_kernels.host_copy import HostCopy


class PendingDraws(ABC):
    """The draws of one step. Steps are collected in the order of their start."""

    @property
    @abstractmethod
    def tokens(self) -> torch.Tensor:
        """Return one token per row, any token for a faulty one. Shapes: [S] int64, on the logits'
        device"""

    @abstractmethod
    def collect(self) -> Draws:
        """Wait for the draws and return them."""


class DoneDraws(PendingDraws):
    """Draws that the host already knows."""

    def __init__(self, draws: Draws, device: torch.device) -> None:
        self._draws = draws
        self._device = device

    @property
    def tokens(self) -> torch.Tensor:
        """Return one token per row. Shapes: [S] int64"""
        return torch.tensor(self._draws.token_ids, dtype=torch.int64, device=self._device)

    def collect(self) -> Draws:
        """Return the draws."""
        return self._draws


class EnqueuedDraws(PendingDraws):
    """Draws in progress on a device. `finish` makes them from the numbers read."""

    def __init__(
        self,
        tokens: torch.Tensor,
        reading: HostCopy,
        finish: Callable[[list[np.ndarray]], Draws],
    ) -> None:
        self._tokens = tokens
        self._reading = reading
        self._finish = finish
        self._draws: Draws | None = None

    @property
    def tokens(self) -> torch.Tensor:
        """Return one token per row. Shapes: [S] int64"""
        return self._tokens

    @property
    def is_read(self) -> bool:
        """Return whether the host knows the draws."""
        return self._draws is not None

    def collect(self) -> Draws:
        """Wait, and return the draws."""
        if self._draws is None:
            self._draws = self._finish(self._reading.wait())
        return self._draws
