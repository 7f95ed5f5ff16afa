"""FittedLinear: a full-precision layer whose parts become integers of few bits while it loads.

Fused parts that get different widths are several matrices side by side. Imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import torch

from dovetail.interfaces.quantization import LinearSpec
from dovetail_kernels.gemm.fitted import fitted
from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.weight import Weight, quantize_int8_groups
from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear, as_stored
from dovetail_plugins.layers.stored.rounding import AUTO
from dovetail_plugins.layers.stored.stored_linear import Several
from dovetail_plugins.quantization._grids import BYTE_GROUP, Grid

Importances = Callable[[LinearSpec], torch.Tensor | None]
"""The mean squares of a layer's inputs, if they are known. Shapes: -> [I]"""


def unknown(spec: LinearSpec) -> None:
    """Return None: nothing is known about inputs."""


class FittedLinear(ConvertedLinear):
    """A weight whose parts get the grids of the same places."""

    def __init__(
        self, grids: Sequence[Grid], importances: Importances = unknown, *, activations: str = AUTO
    ) -> None:
        super().__init__(as_stored, activations=activations)
        self._grids, self._importances = grids, importances

    def packed_of(self, tensors: Mapping[str, torch.Tensor], spec: LinearSpec) -> Matrix:
        """Return a loaded weight, fitted and packed."""
        squares = self._importances(spec)
        alike = groupby(zip(self._grids, spec.out_sizes, strict=True), key=itemgetter(0))
        grids = [(grid, sum(size for _, size in parts)) for grid, parts in alike]
        rows = tensors["weight"].split([size for _, size in grids])
        weights = [
            _on_grid(part, grid, squares) for part, (grid, _) in zip(rows, grids, strict=True)
        ]
        if len(weights) == 1:
            return self.packed(weights[0], spec, is_gated=spec.is_gated)
        return Several([self.packed(one, spec, is_gated=False) for one in weights])


def _on_grid(weight: torch.Tensor, grid: Grid, squares: torch.Tensor | None) -> Weight:
    """Return a matrix on a grid. Shapes: weight [N, K], squares [K]"""
    if grid.bits == 8:
        return quantize_int8_groups(weight, BYTE_GROUP)
    squares = None if squares is None else squares.to(weight.device)
    return fitted(weight, grid.bits, has_offsets=grid.has_offsets, importances=squares)
