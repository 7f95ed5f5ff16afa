"""Pieces of recurrent layers: convolutions over a row's last inputs, divided vectors, kernels.

A kernel of a recurrent layer takes its rows as `RowStates` and a part of the layer's state; on CPUs
native ones run, on GPUs Triton's, elsewhere the definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.placement import (
    Part,
    Placement,
    WeightHolder,
    held_parts,
    mark_axes,
    place_parts,
)
from dovetail.layers.state import CONV, RowStates
from dovetail.layers.state import Part as StatePart
from dovetail_kernels import short_conv
from dovetail_kernels.op import Op
from dovetail_kernels.short_conv.native import ShortConv as NativeShortConv

Kernel = Callable[..., torch.Tensor]


def over_rows(op: Op, context: BuildContext, native: Callable[[], Kernel]) -> Kernel:
    """Return what computes an op over states: its last argument is the step's RowStates. `native`
    makes the native call."""
    if runs_natively(op, context):
        run = native()

        def run_native(*arguments: Any, rows: RowStates) -> torch.Tensor:
            return run(*arguments, rows.native)

        return run_native
    function = fused_kernel(op, context) or op.reference

    def run_other(*arguments: Any, rows: RowStates) -> torch.Tensor:
        made: torch.Tensor = function(*arguments, **rows.arguments())
        return made

    return run_other


class DividedVectors(WeightHolder):
    """A layer with parameters of its own whose rows are divided over ranks like the parts say."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[str, tuple[Part, ...]] = {}

    def add_vector(
        self,
        context: BuildContext,
        name: str,
        parts: Sequence[Part],
        *,
        behind: tuple[int, ...] = (),
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make an empty parameter of these parts' rows. Shapes: [rows, *behind]. Mutates: self"""
        shape = (sum(part.local for part in parts), *behind)
        values = torch.empty(
            shape, dtype=dtype or dtype_of(context.model.dtype), device=context.device
        )
        own = nn.Parameter(values, requires_grad=False)
        self.register_parameter(name, mark_axes(own, output=0, input=None))
        self._parts[name] = tuple(parts)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where the checkpoint tensor goes (see WeightHolder)."""
        parameter = self._parameters.get(leaf)
        if parameter is None:
            return None
        return place_parts(leaf, parameter, self._parts[leaf], part, None)

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece per part."""
        return {p.name for p in held_parts(self.get_parameter(leaf), self._parts[leaf])}


class ShortConv(DividedVectors):
    """A causal convolution of each channel with its last `width` inputs, of which the state keeps
    all but the newest. `parts` are the channels, as ranks divide them."""

    def __init__(
        self,
        context: BuildContext,
        parts: Sequence[Part],
        width: int,
        *,
        bias: bool,
        act: str = "none",
    ) -> None:
        super().__init__()
        self.width = width
        self.num_channels = sum(part.local for part in parts)
        self.add_vector(context, "weight", parts, behind=(1, width))
        if bias:
            self.add_vector(context, "bias", parts)
        self._run = over_rows(short_conv.OP, context, partial(NativeShortConv, act))
        self._keywords = {} if runs_natively(short_conv.OP, context) else {"activation": act}

    def state_part(self, name: str = "conv") -> StatePart:
        """Return what a row keeps."""
        return StatePart(name=name, shape=(self.num_channels, self.width - 1), holds=CONV)

    def forward(self, x: torch.Tensor, state: torch.Tensor, rows: RowStates) -> torch.Tensor:
        """Return the convolution, and its activation. Shapes: x [T, C], state [N, C, width - 1] ->
        [T, C]. Mutates: state"""
        own = self._parameters
        weight = own["weight"]
        assert weight is not None
        bias = own.get("bias")
        return self._run(x, weight.squeeze(1), bias, state, rows=rows, **self._keywords)
