"""Tiles of the GPU's products: rows and outputs of a program, parts of the inputs.

Knows no weight and no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS = 264
"""As many programs as keep a device of 132 processors busy: two on each, of four warps."""
MAX_PARTS = 8
MIN_PANELS = 4
"""Panels that a program multiplies at least, so that loads run ahead of it."""
MAX_SPLIT_ROWS = 64
"""Above, a product is bound by its operations: larger tiles, inputs in one part, and scales of 16
inputs multiplied into the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The shape of a product: rows and outputs of a program, parts of the inputs, and how the
    device runs it."""

    rows: int
    outputs: int
    parts: int
    warps: int
    stages: int


def tiles(rows: int, outputs: int, panels: int) -> Tiles:
    """Return the tiles of a product. Parts depend on the weight alone: a row's sums are the same
    in every batch of up to 64 rows, and in every larger one."""
    if rows > MAX_SPLIT_ROWS:
        return Tiles(rows=128, outputs=128, parts=1, warps=8, stages=3)
    parts = 1
    while parts < MAX_PARTS and parts * -(-outputs // 64) < PROGRAMS:
        parts *= 2
    while parts > 1 and panels // parts < MIN_PANELS:
        parts //= 2
    height = 16 if rows <= 16 else 32 if rows <= 32 else 64
    return Tiles(rows=height, outputs=64, parts=parts, warps=4, stages=4)
