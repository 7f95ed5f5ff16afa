"""The grids of int4: how many bits a layer's weights get, and how much memory that is.
Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail_plugins.layers.stored.rounding import INT8
from dovetail_plugins.quantization._estimates import int8_estimate, matrix_of, value_bytes

GROUP, RUN = 32, 256
"""Inputs that share a scale, and those that share the step of scales."""
STEP_BYTES = 2
BYTE_GROUP = 128
"""Inputs that share a scale in 8 bits."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers of some bits in groups, with an offset for each group or without."""

    bits: int
    has_offsets: bool = False


def grid_estimate(layer: StoredLayer, grid: Grid, *, packs: bool) -> StorageEstimate | None:
    """Return the estimate of a full-precision layer on a grid, None for another layer."""
    weight = matrix_of(layer)
    if weight is None or grid.bits == 8:
        return int8_estimate(layer, BYTE_GROUP, packs=packs)
    inputs = weight.shape[-1]
    outputs = weight.num_values // inputs
    row_bytes = -(-inputs // GROUP) + STEP_BYTES * -(-inputs // RUN)
    factors = outputs * row_bytes * (2 if grid.has_offsets else 1)
    return StorageEstimate(
        num_values=weight.num_values,
        format=f"int{grid.bits}, groups of {GROUP}",
        num_bytes=value_bytes(weight.num_values, grid.bits, packs=packs) + factors,
        outputs=outputs if len(weight.shape) == 2 else 0,
        takes=INT8,
    )
