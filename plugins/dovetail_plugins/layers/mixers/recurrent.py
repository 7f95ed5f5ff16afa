"""Pieces of recurrent layers: convolutions over a row's last inputs, divided vectors, kernels.

A kernel of a recurrent layer takes its rows as `RowStates` and a part of the layer's state; on CPUs
native ones run, on GPUs Triton's, elsewhere torch computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.placement import (
    Part,
    Placement,
    Rows,
    WeightHolder,
    held_parts,
    mark_axes,
    place_parts,
    place_rows,
)
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.state import CONV, RowStates
from dovetail.layers.state import Part as StatePart
from dovetail_kernels import gated_norm, short_conv
from dovetail_kernels.gated_norm.native import GatedNorm as NativeGatedNorm
from dovetail_kernels.op import Arguments, Op
from dovetail_kernels.short_conv.native import ShortConv as NativeShortConv

Kernel = Callable[..., torch.Tensor]


class OverRows:
    """An op over the states of one layer: by a native call, the device's kernel, or in torch by
    `plain` (None: the definition). `bound` returns the layer's own arguments: a native call is
    built with them once, the others get them each time."""

    def __init__(
        self,
        op: Op,
        context: BuildContext,
        native: Callable[..., Kernel],
        bound: Callable[[], Arguments],
        *,
        plain: Kernel | None = None,
    ) -> None:
        self._make = native if runs_natively(op, context) else None
        self._native: Kernel | None = None
        self._bound = bound
        self._run: Kernel = fused_kernel(op, context) or plain or op.reference

    def finish(self) -> None:
        """Make the native call, once the layer's arguments are filled. Mutates: self"""
        if self._make is not None:
            self._native = self._make(**self._bound())

    def __call__(self, state: torch.Tensor, rows: RowStates, **given: Any) -> torch.Tensor:
        """Return the op's result for the named arguments (see the op). Mutates: state"""
        if self._native is not None:
            return self._native(**given, state=state, rows=rows.native)
        return self._run(**given, **self._bound(), state=state, **rows.arguments())


def gated_norm_kernel(
    context: BuildContext, size: int, *, eps: float, gate_first: bool
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the kernel of (x, gate, weight) that norms groups of `size` channels and gates."""
    if runs_natively(gated_norm.OP, context):
        return NativeGatedNorm(size, eps=eps, gate_first=gate_first)
    run = fused_kernel(gated_norm.OP, context) or gated_norm.OP.reference
    return partial(run, eps=eps, group_size=size, gate_first=gate_first)


class DividedVectors(WeightHolder):
    """A layer with parameters whose rows are divided over ranks as their parts say."""

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
        """Return the target of a checkpoint tensor (see WeightHolder)."""
        parameter = self._parameters.get(leaf)
        if parameter is None:
            return None
        return place_parts(leaf, parameter, self._parts[leaf], part, None)

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece per part."""
        return {p.name for p in held_parts(self.get_parameter(leaf), self._parts[leaf])}


class ShortConv(DividedVectors):
    """A causal convolution of each channel with its last `width` inputs; the state stores all but
    the newest. `parts` are the channels, as ranks divide them."""

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
        self._run = OverRows(short_conv.OP, context, NativeShortConv, lambda: {"activation": act})
        self._run.finish()

    def place_tensor(
        self, leaf: str, part: str | None, shape: Sequence[int]
    ) -> list[Placement] | None:
        """Return the target of a part's tensor. transformers joins the parts and, on saving, cuts
        the whole into even pieces under their names, whatever their sizes."""
        whole = self._parts[leaf]
        names = [one.name for one in whole]
        if part not in names or shape[0] == whole[names.index(part)].full:
            return self.place(leaf, part)
        full = sum(one.full for one in whole)
        size = -(-full // len(whole))
        start = names.index(part) * size
        end = min(start + size, full)
        if shape[0] != end - start:
            return self.place(leaf, part)
        return self._place_piece(leaf, part, start, end)

    def _place_piece(self, leaf: str, piece: str, start: int, end: int) -> list[Placement]:
        """Return the targets of rows start .. end of all joined parts; rows of other ranks have
        none."""
        rows, before, offset = [], 0, 0
        for part in self._parts[leaf]:
            first = before + part.start
            low, high = max(first, start), max(start, min(first + part.held, end))
            own = Rows(
                piece=piece,
                start=low - start if high > low else 0,
                size=max(0, high - low),
                full=end - start,
                offset=offset + low - first if high > low else 0,
            )
            rows.append(own)
            before, offset = before + part.full, offset + part.local
        return place_rows(leaf, self.get_parameter(leaf), self.num_channels, rows, None)

    def state_part(self, name: str = "conv") -> StatePart:
        """Return a row's state."""
        return StatePart(name=name, shape=(self.num_channels, self.width - 1), holds=CONV)

    def forward(self, x: torch.Tensor, state: torch.Tensor, rows: RowStates) -> torch.Tensor:
        """Return the convolution, and its activation. Shapes: x [T, C], state [N, C, width - 1] ->
        [T, C]. Mutates: state"""
        own = self._parameters
        weight = own["weight"]
        assert weight is not None
        bias = own.get("bias")
        return self._run(state, rows, x=x, weight=weight.squeeze(1), bias=bias)
