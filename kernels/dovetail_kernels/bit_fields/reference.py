"""The definition of bit_fields in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Plane:
    """Where a block holds some bits of its values: bytes `start` to `stop`, in fields of `bits`.

    The lowest fields of `run` bytes come first, then the next ones of the same bytes; then the next
    `run` bytes. `shift`: the place of these bits in the value. `low`: the first bit of a byte that
    is taken; `parts`: how many fields of a byte are, 0 for all. `first`: the number of the first
    value. Planes with the same values have the same number of them.
    """

    start: int
    stop: int
    bits: int
    run: int
    shift: int = 0
    low: int = 0
    parts: int = 0
    first: int = 0

    @property
    def taken(self) -> int:
        """Return the fields of a byte that are taken."""
        return self.parts or (8 - self.low) // self.bits

    @property
    def num_values(self) -> int:
        """Return the values of a block that this plane has bits of."""
        return (self.stop - self.start) * self.taken

    @property
    def places(self) -> range:
        """Return the numbers of these values."""
        return range(self.first, self.first + self.num_values)


def num_values(planes: Sequence[Plane]) -> int:
    """Return the values of a block."""
    return max(plane.places.stop for plane in planes)


def reference(blocks: torch.Tensor, planes: Sequence[Plane]) -> torch.Tensor:
    """Return the values of blocks. Shapes: blocks [n, S] uint8 -> [n, B] uint8"""
    values = blocks.new_zeros(len(blocks), num_values(planes))
    for plane in planes:
        raw = blocks[:, plane.start : plane.stop].reshape(len(blocks), -1, 1, plane.run)
        shifts = plane.low + torch.arange(plane.taken, device=raw.device) * plane.bits
        parts = raw >> shifts.to(torch.uint8).view(1, 1, -1, 1) & ((1 << plane.bits) - 1)
        own = values[:, plane.first : plane.places.stop]
        own |= parts.reshape(own.shape) << plane.shift
    return values
