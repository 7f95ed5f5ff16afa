"""Matrices of few bits whose scales are searched (see the op group_fit).

Shape letters: N outputs, K inputs.
"""

from __future__ import annotations

import torch

from dovetail_kernels import group_fit
from dovetail_kernels.gemm.weight import Weight, integer_format

GROUP = 32
"""Inputs that share a scale."""
RUN = 256
"""Inputs that share a step of the scales."""


def fitted(
    weight: torch.Tensor,
    bits: int,
    *,
    has_offsets: bool,
    importances: torch.Tensor | None = None,
    activations: str = "float",
) -> Weight:
    """Return the matrix of 2 to 6 bits with the least error weighted by `importances`, the mean
    squares of its inputs (None: equal). Shapes: weight [N, K], importances [K]"""
    fit = group_fit.OP.pick(weight.device.type, weight.dtype)
    values, scales, steps, offsets, offset_steps = fit(
        weight=weight,
        importances=importances,
        bits=bits,
        group=GROUP,
        run=RUN // GROUP,
        has_offsets=has_offsets,
    )
    return Weight(
        format=integer_format(bits, activations),
        values=values,
        scales=scales,
        offsets=offsets,
        steps=_narrow(steps),
        offset_steps=None if offset_steps is None else _narrow(offset_steps),
        group=GROUP,
        run=RUN,
    )


def _narrow(steps: torch.Tensor) -> torch.Tensor:
    """Return steps as float16 if that holds all of them exactly."""
    halves = steps.half()
    return halves if torch.equal(halves.float(), steps) else steps
