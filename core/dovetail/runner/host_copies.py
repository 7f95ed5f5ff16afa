"""HostCopies: the content of tensors, one behind the other in pieces of host memory.

The pieces are pinned for tensors of a GPU, where they can be, so that copies run at the speed of
the bus and need not be waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

log = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20
"""A power of two: torch rounds pinned memory up to one."""


class HostCopies:
    """Copies of byte tensors. `pins`: in pinned memory. `num_bytes` are kept."""

    def __init__(self, *, pins: bool) -> None:
        self.num_bytes = 0
        self._pins = pins
        self._pieces: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Keep a tensor's content; return where it begins. Shapes: tensor [bytes] uint8"""
        start = self.num_bytes
        for offset, piece in self._places(start, len(tensor)):
            piece.copy_(tensor[offset : offset + len(piece)])
        self.num_bytes += len(tensor)
        return start

    def restore(self, start: int, tensor: torch.Tensor) -> None:
        """Fill a tensor with what is kept from `start` on, in the order of the device's work.

        Shapes: tensor [bytes] uint8. Mutates: tensor
        """
        for offset, piece in self._places(start, len(tensor)):
            tensor[offset : offset + len(piece)].copy_(piece, non_blocking=True)

    def _places(self, start: int, num_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Give the places of a tensor's bytes: where in it, and the host memory."""
        offset = 0
        while offset < num_bytes:
            number, inside = divmod(start + offset, PIECE_BYTES)
            while len(self._pieces) <= number:
                self._pieces.append(self._new())
            piece = self._pieces[number][inside : inside + num_bytes - offset]
            yield offset, piece
            offset += len(piece)

    def _new(self) -> torch.Tensor:
        if self._pins:
            try:
                return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                log.warning("weights are kept in host memory that is not pinned: %s", error)
                self._pins = False
        return torch.empty(PIECE_BYTES, dtype=torch.uint8)


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as one tensor of bytes."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))
