"""HostCopies: tensor contents saved back to back in chunks of host memory.

For GPU tensors the chunks are pinned if possible, so that copies run at bus speed and are
asynchronous.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

log = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20
"""A power of two: torch rounds pinned memory up to one."""


class HostCopies:
    """Copies of byte tensors, `num_bytes` in total. `pins`: in pinned memory."""

    def __init__(self, *, pins: bool) -> None:
        self.num_bytes = 0
        self._pins = pins
        self._pieces: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Save a tensor's content; return its offset. Shapes: tensor [bytes] uint8"""
        start = self.num_bytes
        for offset, piece in self._places(start, len(tensor)):
            piece.copy_(tensor[offset : offset + len(piece)])
        self.num_bytes += len(tensor)
        return start

    def restore(self, start: int, tensor: torch.Tensor) -> None:
        """Fill a tensor with the content saved at offset `start`, in the device's stream order.

        Shapes: tensor [bytes] uint8. Mutates: tensor
        """
        for offset, piece in self._places(start, len(tensor)):
            tensor[offset : offset + len(piece)].copy_(piece, non_blocking=True)

    def _places(self, start: int, num_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (offset in the tensor, host memory) for each chunk of its bytes."""
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
