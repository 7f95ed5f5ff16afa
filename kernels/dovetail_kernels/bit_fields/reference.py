"""The definition of bit_fields in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Plane:
    """Where a block holds some bits of its values: bytes `start` to `stop`, in fields of `bits`.

    The lowest fields of `run` bytes come first, then the next ones of the same bytes; then the next
    `run` bytes. `shift`: the place of these bits in the value.
    """

    start: int
    stop: int
    bits: int
    run: int
    shift: int = 0

    @property
    def num_values(self) -> int:
        """Return the values of a block."""
        return (self.stop - self.start) * 8 // self.bits


def reference(blocks: torch.Tensor, planes: Sequence[Plane]) -> torch.Tensor:
    """Return the values of blocks. Shapes: blocks [n, S] uint8 -> [n, B] uint8"""
    values = blocks.new_zeros(len(blocks), planes[0].num_values)
    for plane in planes:
        raw = blocks[:, plane.start : plane.stop].reshape(len(blocks), -1, 1, plane.run)
        shifts = torch.arange(0, 8, plane.bits, dtype=torch.uint8, device=raw.device)
        parts = raw >> shifts.view(1, 1, -1, 1) & ((1 << plane.bits) - 1)
        values |= parts.reshape(values.shape) << plane.shift
    return values
