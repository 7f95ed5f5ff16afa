"""Adapter slots of linear layers: apply the adapters in use to all rows of a step together.

A layer that adapters may change holds their weights by slot; the step has each token's slot.
Low-rank changes are one kernel besides the layer's own product. Changes that also scale, shift or
replace are rarer and are computed here. Shape letters: S slots, P parts fused along the output, R
the maximum rank, I input, O output features of this rank. Tables are in `table_adapters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.quantization import Gate, LinearSpec, NamedActivation
from dovetail.layers.context import StepAdapters, step_adapters
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.native import NATIVE
from dovetail.parallel.collectives import all_reduce
from dovetail_kernels.low_rank import OP
from dovetail_kernels.low_rank.native import LowRank

if TYPE_CHECKING:
    from dovetail.interfaces.data.adapter_spec import AdapterSpec
    from dovetail.layers.linear import Linear


KEPT = math.nan
"""Marks, in a vector, outputs of parts that an adapter does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWeights:
    """One adapter's change of one layer on this rank. See ModuleChange; a `gain` is the magnitude
    divided by the norms, None if not computed yet. `down` includes the scale of the inputs. If a
    magnitude or a bias is KEPT, the layer's own is used.

    Shapes: down [P, r, I], up [r, O], magnitude, gain, output_scale, shift, bias [O], input_scale
    [P, I], weight [O, I]
    """

    down: torch.Tensor | None = None
    up: torch.Tensor | None = None
    magnitude: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    output_scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    input_scale: torch.Tensor | None = None
    weight: torch.Tensor | None = None

    @property
    def is_low_rank(self) -> bool:
        """Return whether the change is a low-rank sum and nothing else."""
        return all(getattr(self, name) is None for name in BEYOND_LOW_RANK)

    def on(self, device: torch.device) -> SlotWeights:
        """Return the change on a device."""
        tensors = ((one.name, getattr(self, one.name)) for one in fields(self))
        return SlotWeights(**{name: t.to(device) for name, t in tensors if t is not None})


BEYOND_LOW_RANK = tuple({one.name for one in fields(SlotWeights)} - {"down", "up"})
"""The fields of a change besides its low-rank sum."""


class LowRankSlots(nn.Module):
    """Pairs of low-rank matrices by slot. Shapes: down [S, P, R, I], up [S, R, O], ranks [S]"""

    down: torch.Tensor
    up: torch.Tensor
    ranks: torch.Tensor

    def __init__(self, spec: AdapterSpec, layer: LinearSpec) -> None:
        super().__init__()
        parts, in_size, device = layer.out_sizes, layer.in_size, torch.device(layer.device)
        slots, rank, dtype = spec.max_slots, spec.max_rank, dtype_of(spec.dtype)
        self.parts = parts
        down = torch.zeros(slots, len(parts), rank, in_size, dtype=dtype, device=device)
        up = torch.zeros(slots, rank, sum(parts), dtype=dtype, device=device)
        self.register_buffer("down", down, persistent=False)
        self.register_buffer("up", up, persistent=False)
        ranks = torch.zeros(slots, dtype=torch.int32, device=device)
        self.register_buffer("ranks", ranks, persistent=False)
        self._kernel = self._kernel_of(dtype_of(layer.dtype))

    def _kernel_of(self, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        """Return the kernel that adds the slots' products to a base, for activations of a dtype."""
        if OP.runs(NATIVE, self.down.device.type, dtype):
            return LowRank(self.down, self.up, self.ranks, self.parts)
        run = OP.pick(self.down.device.type, dtype)
        weights = {"down": self.down, "up": self.up, "ranks": self.ranks, "parts": self.parts}
        return partial(run, **weights)

    def put(self, slot: int, down: torch.Tensor | None, up: torch.Tensor | None) -> None:
        """Fill a slot, or empty it. Shapes: down [P, r, I], up [r, O]. Mutates: self"""
        rank = 0
        if down is not None and up is not None:
            rank = up.shape[0]
            self.down[slot, :, :rank].copy_(down)
            self.up[slot, :rank].copy_(up)
        self.ranks[slot] = rank

    def add(self, x: torch.Tensor, slots: torch.Tensor, base: torch.Tensor | None) -> torch.Tensor:
        """Return base + the product of x with the slots' matrices.

        Shapes: x [T, I], slots [T] int32, base None, [O] or [T, O] -> [T, O]
        """
        return self._kernel(x, slots, base=base)


class LinearSlots(LowRankSlots):
    """The adapters of one linear layer."""

    def __init__(self, layer: Linear, spec: AdapterSpec) -> None:
        super().__init__(spec, layer.spec)
        self._is_first = layer.group.rank == 0 or not layer.is_input_split
        self._others: dict[int, SlotWeights] = {}

    def put_change(self, layer: Linear, slot: int, change: SlotWeights | None) -> None:
        """Put a change of the layer into a slot, or empty it. Mutates: self"""
        self._others.pop(slot, None)
        if change is None:
            self.put(slot, None, None)
            return
        if not change.is_low_rank:
            change = change.on(self.down.device)
        if change.magnitude is not None:
            change = with_gain(layer, change)
        up = change.up
        for factor in (change.gain, change.output_scale):
            if up is not None and factor is not None:
                up = up * factor
        self.put(slot, change.down, up)
        if not change.is_low_rank:
            self._others[slot] = change

    def product(
        self,
        layer: Linear,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (residual +) the layer's product with each row's adapter.

        Shapes: x [T, I], residual [T, O] -> [T, O]
        """
        step = self._step()
        if not step.is_low_rank and self._others:
            out = self._put_together(layer, x, bias, step.slots)
            return out if residual is None else residual + out
        return layer.method.apply_add(layer, x, bias, self.add(x, step.slots, residual))

    def activated(
        self,
        layer: Linear,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        activation: NamedActivation,
    ) -> torch.Tensor:
        """Return the activation of the product with each row's adapter.

        Shapes: x [T, I] -> [T, O]
        """
        step = self._step()
        if not step.is_low_rank and self._others:
            return activation.function(self._put_together(layer, x, bias, step.slots))
        own = self.add(x, step.slots, bias)
        return layer.method.apply_activated(layer, x, own, activation)

    def gated(
        self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor:
        """Return act(first half) * second half of the product with each row's adapter.

        Shapes: x [T, I] -> [T, F]
        """
        step = self._step()
        if not step.is_low_rank and self._others:
            return gate.joined(self._put_together(layer, x, bias, step.slots))
        return layer.method.apply_gated(layer, x, self.add(x, step.slots, bias), gate)

    def _step(self) -> StepAdapters:
        step = step_adapters()
        assert step is not None, "a step without adapters is the layer's own (in_use)"
        return step

    def _put_together(
        self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None, slots: torch.Tensor
    ) -> torch.Tensor:
        """Return the products of rows with any kind of adapter. Shapes: -> [T, O]"""
        used = [(slot, slots == slot) for slot in self._others]
        used = [(slot, rows.unsqueeze(1)) for slot, rows in used if bool(rows.any())]
        out = layer.method.halves(layer, x)
        changed = torch.zeros_like(slots, dtype=torch.bool).unsqueeze(1)
        for slot, rows in used:
            out = torch.where(rows, self._own(layer, self._others[slot], x, out, bias), out)
            changed |= rows
        if bias is not None:
            out = torch.where(changed, out, out + bias)
        return self.add(x, slots, out)

    def _own(
        self,
        layer: Linear,
        change: SlotWeights,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the products with a slot's adapter, without its low-rank sum; `out` are the
        layer's own. Shapes: x [T, I], out [T, O] -> [T, O]"""
        if change.input_scale is not None or change.weight is not None:
            out = _product(layer, change, x)
        if change.gain is not None:
            out = out * change.gain.to(out)
        own = bias if change.bias is None else _bias(change.bias, bias)
        if own is not None and self._is_first:
            out = out + own
        if change.output_scale is not None:
            out = out * change.output_scale.to(out)
        if change.shift is not None and self._is_first:
            out = out + change.shift
        return out


def in_use(slots: LinearSlots | None) -> LinearSlots | None:
    """Return a layer's slots if some token of the step uses an adapter, else None."""
    return slots if slots is not None and step_adapters() is not None else None


def _bias(given: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
    """Return an adapter's bias, with the layer's own for KEPT outputs. Shapes: [O]"""
    return torch.where(given.isnan(), 0.0 if own is None else own.to(given), given)


def _product(layer: Linear, change: SlotWeights, x: torch.Tensor) -> torch.Tensor:
    """Return the product of scaled inputs with the layer's matrix, or with its replacement; each
    part of the outputs has its own input scale. Shapes: x [T, I] -> [T, O]"""
    weight, scales = change.weight, change.input_scale

    def times(x: torch.Tensor) -> torch.Tensor:
        return layer.method.halves(layer, x) if weight is None else F.linear(x, weight.to(x))

    if scales is None:
        return times(x)
    if bool((scales == scales[0]).all()):
        return times(x * scales[0].to(x))
    sizes = layer.spec.out_sizes
    parts = [times(x * scale.to(x)).split(sizes, dim=1)[p] for p, scale in enumerate(scales)]
    return torch.cat(parts, dim=1)


def with_gain(layer: Linear, change: SlotWeights) -> SlotWeights:
    """Return a change with its magnitude divided by the norms of the changed matrix's rows.

    All ranks call it together: a row's inputs may be spread over several. Source: Liu et al.,
    "DoRA: weight-decomposed low-rank adaptation", 2024.
    """
    squares = sum_of_squares(layer, change)
    if layer.is_input_split:
        squares = all_reduce(squares, layer.group)
    assert change.magnitude is not None
    magnitude = change.magnitude.to(squares)
    gain = torch.where(magnitude.isnan(), 1.0, magnitude / squares.sqrt())
    return replace(change, gain=gain, magnitude=None)


NORM_INPUTS = 256
"""Inputs whose columns are computed at a time."""


def sum_of_squares(layer: Linear, change: SlotWeights) -> torch.Tensor:
    """Return the squared norms of the rows of (W + up down), over this rank's inputs. Since the
    matrix may be packed, it is read by multiplying unit vectors. Shapes: -> [O]"""
    size, dtype = layer.spec.in_size, dtype_of(layer.spec.dtype)
    device = torch.device(layer.spec.device)
    total = torch.zeros(layer.spec.out_size, device=device)
    for start in range(0, size, NORM_INPUTS):
        count = min(NORM_INPUTS, size - start)
        units = torch.zeros(count, size, dtype=dtype, device=device)
        units[torch.arange(count), start + torch.arange(count)] = 1
        columns = layer.method.halves(layer, units).float()
        if change.down is not None and change.up is not None:
            down = change.down[:, :, start : start + count].float()
            ups = change.up.float().split(layer.spec.out_sizes, dim=1)
            pairs = zip(down, ups, strict=True)
            columns = columns + torch.cat([d.t() @ u for d, u in pairs], dim=1).to(columns)
        total += columns.square().sum(dim=0)
    return total
