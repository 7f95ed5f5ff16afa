"""Placement: where a piece of a checkpoint tensor goes in this rank's parameters.

Layers that shard or fuse weights are WeightHolders and place tensors in their own parameters. Every
other parameter takes its checkpoint tensor whole.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import cast

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.packs import PACKED_LAYERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`size` elements from `start`, every `step`-th, along an `axis` on which the tensor has
    `full`.

    `may_be_shared`: or one element, which is for all ranks.
    """

    axis: int
    start: int
    size: int
    full: int
    may_be_shared: bool = False
    step: int = 1

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements, as a view."""
        if self.step == 1:
            return tensor.narrow(self.axis, self.start, self.size)
        every = slice(self.start, self.start + self.step * self.size, self.step)
        return tensor[(slice(None),) * self.axis + (every,)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`target` (a view of parameter `name`) takes the checkpoint tensor after all `cuts`.

    `piece` names a piece of the parameter; a parameter is filled when all pieces are.
    """

    name: str
    piece: str
    target: torch.Tensor
    cuts: tuple[Cut, ...] = ()

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Return the shape that the checkpoint tensor must have."""
        shape = list(self.target.shape)
        for cut in self.cuts:
            shape[cut.axis] = cut.full
        return tuple(shape)

    def fitted(self, shape: Sequence[int]) -> Placement:
        """Return the placement of a tensor of this shape: uncut if the tensor is for all ranks."""
        cuts = tuple(cut for cut in self.cuts if not cut.may_be_shared)
        shared = replace(self, cuts=cuts)
        return shared if math.prod(shape) == math.prod(shared.full_shape) else self

    def fill(self, tensor: torch.Tensor) -> None:
        """Copy this placement's piece of `tensor`. Mutates: target"""
        self.target.copy_(self.cut(tensor))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the target holds this placement's piece of `tensor` already."""
        return self.target.is_meta or torch.equal(self.target, self.cut(tensor).to(self.target))

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's piece of `tensor`, as a view."""
        for cut in self.cuts:
            tensor = cut.of(tensor)
        return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """`size` rows of a fused part `piece`: from row `start` of a checkpoint tensor with `full`
    rows, to row `offset` of this rank's parameter."""

    piece: str
    start: int
    size: int
    full: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the matrices fused along the output of a layer.

    The checkpoint's matrix has `full` rows; this rank holds `local` rows from `start` on (fewer if
    the last rank's share is padded).
    """

    name: str
    full: int
    local: int
    start: int

    @property
    def held(self) -> int:
        """Return the rows that exist in the checkpoint, without padding."""
        return max(0, min(self.local, self.full - self.start))


class WeightHolder(nn.Module):
    """A layer that places checkpoint tensors in its own parameters. `if_missing` is the advice if a
    checkpoint has none of them."""

    if_missing = ""

    @abstractmethod
    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the placements of the tensor called `leaf`, or None when it has no place here.

        `leaf` is the checkpoint's name below this layer; `part` names the fused matrix it is, None
        when it is all of them.
        """

    def place_tensor(
        self, leaf: str, part: str | None, shape: Sequence[int]
    ) -> list[Placement] | None:
        """Return the placements of a tensor of this shape: those of `place`, except for layers
        whose parts have other shapes in some checkpoints."""
        return self.place(leaf, part)

    @abstractmethod
    def pieces(self, leaf: str) -> set[str]:
        """Return the pieces that together fill parameter `leaf`."""

    def finish(self) -> None:
        """Repack the parameters once all are filled."""


def mark_axes(
    parameter: nn.Parameter,
    *,
    output: int | None,
    input: int | None,
    is_per_part: bool = False,
    is_optional: bool = False,
    parts: tuple[int, ...] | None = None,
) -> nn.Parameter:
    """Set which axes of a parameter run along the layer's output and input; returns it.

    `is_per_part`: axis 0 counts the fused parts; each has a tensor without that axis. `parts` are
    the numbers of the fused parts that it holds; None: all. `is_optional`: a checkpoint may lack
    it.
    Mutates: parameter (its attributes)
    """
    vars(parameter).update(
        output_axis=output,
        input_axis=input,
        is_per_part=is_per_part,
        is_optional=is_optional,
        parts=parts,
    )
    return parameter


def memory_of(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's values, at first with the memory that its `make_memory` returns."""
    if make_memory := vars(parameter).pop("make_memory", None):
        parameter.data = make_memory()
    return parameter.data


def is_optional(parameter: nn.Parameter) -> bool:
    """Return whether a checkpoint may lack a parameter."""
    return bool(vars(parameter).get("is_optional"))


def is_per_part(parameter: nn.Parameter) -> bool:
    """Return whether axis 0 of a parameter counts the fused parts."""
    return bool(vars(parameter).get("is_per_part"))


def held_parts(parameter: nn.Parameter, parts: Sequence[Part]) -> Sequence[Part]:
    """Return the fused parts of a layer that a parameter holds."""
    numbers = vars(parameter).get("parts")
    return parts if numbers is None else [parts[number] for number in numbers]


def numbered(name: str, part: int) -> str:
    """Return the parameter name of a part whose plain name another part uses."""
    return f"{name}_of_{part}"


def parameter_of(
    parameters: Mapping[str, nn.Parameter | None],
    leaf: str,
    part: str | None,
    parts: Sequence[Part],
) -> str:
    """Return the parameter that holds a part's tensor: parts may have separate parameters."""
    for number in range(len(parts)):
        name = numbered(leaf, number)
        parameter = parameters.get(name)
        if parameter is None or part is None:
            continue
        if part in {one.name for one in held_parts(parameter, parts)}:
            return name
    return leaf


def register_stored(
    layer: nn.Module, tensors: Sequence[StoredTensor], spec: LinearSpec, *, experts: int = 0
) -> None:
    """Register empty parameters for a layer's stored checkpoint tensors.

    `experts`: so many matrices are stacked along a new axis 0. Mutates: layer
    """
    for stored in tensors:
        layer.register_parameter(stored.name, stored_parameter(stored, spec, experts=experts))


def stored_parameter(stored: StoredTensor, spec: LinearSpec, *, experts: int = 0) -> nn.Parameter:
    """Return the empty (or default) parameter of a stored tensor."""
    sizes = spec.out_sizes if stored.parts is None else stored.parts
    parts = (len(sizes),) if stored.is_per_part else ()
    shape = (*((experts,) if experts else ()), *parts, *stored.shape)
    device = "meta" if spec.name in PACKED_LAYERS.get() else spec.device
    values = torch.empty(shape, dtype=dtype_of(stored.dtype), device=device)
    if stored.default is not None:
        values.fill_(stored.default)
    return mark_axes(
        nn.Parameter(values, requires_grad=False),
        output=stored.output_axis,
        input=stored.input_axis,
        is_per_part=stored.is_per_part,
        is_optional=stored.default is not None,
        parts=stored.parts,
    )


def axes_of(parameter: nn.Parameter) -> tuple[int | None, int | None]:
    """Return (output axis, input axis); (None, None) for a parameter without marks."""
    marks = vars(parameter)
    return cast("int | None", marks.get("output_axis")), cast("int | None", marks.get("input_axis"))


def place_parts(
    leaf: str,
    parameter: nn.Parameter,
    parts: Sequence[Part],
    wanted: str | None,
    input_cut: tuple[int, int, int] | None,
) -> list[Placement] | None:
    """Return the placements of a checkpoint tensor in a parameter made of fused parts.

    `wanted` names one part, or None for a tensor that is all of them joined. `input_cut` is (start,
    size, full) in input features if the input is sharded.
    """
    parts = held_parts(parameter, parts)
    if wanted is not None and wanted not in {p.name for p in parts}:
        return None
    if is_per_part(parameter):
        return _place_per_part(leaf, parameter, parts, wanted, input_cut)
    rows = [
        _rows_of(parts, part, is_joined=wanted is None)
        for part in parts
        if wanted is None or part.name == wanted
    ]
    return place_rows(leaf, parameter, sum(p.local for p in parts), rows, input_cut)


def place_rows(
    leaf: str,
    parameter: nn.Parameter,
    local: int,
    rows: Sequence[Rows],
    input_cut: tuple[int, int, int] | None,
) -> list[Placement]:
    """Return the placements of rows of a checkpoint tensor in a parameter of `local` rows. Packed
    parameters have some entries per row; parameters without rows are whole for each part."""
    data, (output_axis, input_axis) = memory_of(parameter), axes_of(parameter)
    cuts = _input_cuts(leaf, data.shape, input_axis, input_cut)
    if output_axis is None:
        pieces = dict.fromkeys(one.piece for one in rows)
        return [Placement(name=leaf, piece=p, target=data, cuts=cuts) for p in pieces]
    per = Fraction(parameter.shape[output_axis], local)
    return [_placed(leaf, data, output_axis, per, one, cuts) for one in rows]


def _input_cuts(
    leaf: str, shape: Sequence[int], axis: int | None, input_cut: tuple[int, int, int] | None
) -> tuple[Cut, ...]:
    if input_cut is None or axis is None:
        return ()
    per = Fraction(shape[axis], input_cut[1])
    start, size, full = (_whole(leaf, n * per) for n in input_cut)
    cut = Cut(axis=axis, start=start, size=size, full=full, may_be_shared=size == 1)
    return (cut,)


def _place_per_part(
    leaf: str,
    parameter: nn.Parameter,
    parts: Sequence[Part],
    wanted: str | None,
    input_cut: tuple[int, int, int] | None,
) -> list[Placement]:
    """Return the placements of a tensor that each part has for itself. A joined one applies to
    each."""
    cuts = _input_cuts(leaf, parameter.shape[1:], axes_of(parameter)[1], input_cut)
    return [
        Placement(name=leaf, piece=part.name, target=memory_of(parameter)[number], cuts=cuts)
        for number, part in enumerate(parts)
        if wanted in (None, part.name)
    ]


def _rows_of(parts: Sequence[Part], part: Part, *, is_joined: bool) -> Rows:
    """Return the rows of one part, in a tensor of its own or of all parts joined."""
    before = parts[: parts.index(part)]
    return Rows(
        piece=part.name,
        start=(sum(p.full for p in before) if is_joined else 0) + part.start,
        size=part.held,
        full=sum(p.full for p in parts) if is_joined else part.full,
        offset=sum(p.local for p in before),
    )


def _placed(
    leaf: str, data: torch.Tensor, axis: int, per: Fraction, rows: Rows, cuts: tuple[Cut, ...]
) -> Placement:
    """Return the placement of some rows with `per` entries each."""
    length = _whole(leaf, rows.size * per)
    cut = Cut(
        axis=axis,
        start=_whole(leaf, rows.start * per),
        size=length,
        full=_whole(leaf, rows.full * per),
    )
    target = data.narrow(axis, _whole(leaf, rows.offset * per), length)
    is_all = cut.start == 0 and cut.size == cut.full
    return Placement(
        name=leaf, piece=rows.piece, target=target, cuts=cuts if is_all else (*cuts, cut)
    )


def behind_experts(cuts: tuple[Cut, ...], expert: int, num_experts: int) -> tuple[Cut, ...]:
    """Return the cuts of one expert's tensor as cuts of all experts' stacked tensors."""
    moved = (replace(cut, axis=cut.axis + 1) for cut in cuts)
    return (Cut(axis=0, start=expert, size=1, full=num_experts), *moved)


def _whole(leaf: str, count: Fraction | int) -> int:
    """Return a count of packed entries. Raises: ConfigError if a part or a rank ends inside one.

    A quantization method must size its parameters so that whole layers do not.
    """
    value = Fraction(count)
    if value.denominator != 1:
        raise ConfigError(
            f"a part ends inside a packed entry, after {value} of them.",
            where=leaf,
            fix="use fewer ranks: each needs whole packed words and whole groups of inputs.",
        )
    return int(value)
