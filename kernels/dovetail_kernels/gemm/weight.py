"""Weight: the matrix of a linear layer in one of the formats that products read.

Shape letters: N outputs, K inputs, G inputs that share a scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch

from dovetail_kernels import bit_fields
from dovetail_kernels.bit_fields.reference import Plane

FORMATS = (
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "int4",
    "int4_int8",
    "bfloat16_bfloat16",
    "float8",
    "table4",
    "int8_float32",
    "int8_int8",
    "int2",
    "int3",
    "int5",
    "int6",
    "int2_int8",
    "int3_int8",
    "int5_int8",
    "int6_int8",
    "vectors",
    "vectors_int8",
    "trits",
    "trits_int8",
)
"""The weight's format, and after an underscore the activations' if they are not float32.

int8: a scale per output, activations made int8. int8_float32: a scale per output and group of
inputs, float activations; int8_int8: the same, activations made int8. int4 and int4_int8: like
these two, in 4 bits; so are int2, int3, int5 and int6. bfloat16_bfloat16: activations rounded to
bfloat16, which some instruction sets multiply at twice the rate. float8: e4m3 with a scale per
output and group. table4: 4-bit codes of a table of sixteen floats, likewise. vectors: a code
represents 4 or 8 consecutive values, a scale per output and group; vectors_int8: the same,
activations made int8. trits and trits_int8: like int4 and int4_int8, of 0, 1 and 2.

Activations made int8 have a scale for every few inputs of a row (`rounded_inputs`), or become
integers at least as fine if an instruction set multiplies wider ones as fast. Such a product is the
float product within that rounding. Only if a weight says so (`has_token_scales`), a row has one
scale, and products are exactly those of the integers.
"""
PART_VALUES = 1 << 17
ROUNDED_INPUTS = 32
"""How many activations share a scale when they become int8, unless the weight's groups require
fewer: an outlier only costs its neighbours their levels."""
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SCALES = FLOATS | {"float8": torch.float8_e4m3fn, "int8": torch.int8}
"""The types that scales, zero points and offsets may have."""
FLOAT8_LARGEST = 448.0
POINTS_GROUP = 32
"""Groups of vectors and trits are multiples of it, or of half of it if they have steps."""
_PER_OUTPUT = ("values", "signs", "scales", "zeros", "offsets", "steps", "offset_steps", "outer")
"""The tensors of a weight that have a row an output."""
SHARED = ("table", "points")
"""Those that all outputs share."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Where blocks of bytes hold values of up to 8 bits (see the op bit_fields)."""

    planes: tuple[Plane, ...]
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A matrix [N, K].

    `values`: the format's own dtype for floats, int8 for 8 bits, uint8 from 0 on for fewer.
    `scales`: float32 [N] for int8; [N, K / G rounded up] in one of `SCALES` for the others, G a
    multiple of 8, of 16 for 2, 3, 5 and 6 bits. `zeros`: zero points like the scales, None for
    `usual_zero` everywhere: a weight is (value - zero) * scale. `offsets`, like the scales, are
    added instead of zero points: a weight is value * scale + offset. `steps` and `offset_steps`
    [N, K / run] in one of `FLOATS` multiply the scales and the offsets of `run` inputs, G times a
    power of two, which may then be int8. `table` float32 [16] and `outer` float32 [N], which may be
    None: a table4 weight is table[value] * scale * outer, one of int8 points value * scale * outer.
    Values of float8 are never NaN.
    `points` [books, n, size], n a power of two from 256 to 65536, of size 4 or 8: a code selects a
    point, and the points of the books are added. Then `values` are codes, int16 (read as unsigned)
    [N, K / size * books], grouped by vector. Points are int8, of one book, a bit of `signs` uint8
    [N, K / 8], the lowest first, says which of the values are negative, and scales with steps are
    odd codes below 32; or they are float16 of size 8, of at most eight books, with a scale an
    output. Groups are multiples of `POINTS_GROUP`, those with steps of half of it and their runs of
    it; trits' likewise.
    `order` int64 [K]: column j is input order[j] (for groups of non-adjacent inputs).
    `fields`: of weights in up to 8 bits, where the values are in blocks of bytes. Then `values` are
    these blocks, uint8 [N, bytes]; other implementations than the native one unpack them.
    `has_float8_activations`: products of float8 on a GPU make activations e4m3, a scale a row; then
    G is a multiple of 32, if there are several groups.
    `has_token_scales`: products of int8 activations have one scale a row, as the checkpoint's
    format defines them (W8A8); of formats whose values are integers.
    """

    format: str
    values: torch.Tensor
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    steps: torch.Tensor | None = None
    offset_steps: torch.Tensor | None = None
    run: int = 0
    table: torch.Tensor | None = None
    outer: torch.Tensor | None = None
    points: torch.Tensor | None = None
    signs: torch.Tensor | None = None
    group: int = 0
    order: torch.Tensor | None = None
    fields: Fields | None = None
    has_float8_activations: bool = False
    has_token_scales: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""
        outputs, inputs = self.values.shape
        if self.fields is not None:
            inputs = inputs // self.fields.block_bytes * self.fields.planes[0].num_values
        if self.points is not None:
            books, _, size = self.points.shape
            inputs = inputs // books * size
        return outputs, inputs

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows of the matrix that is meant. Shapes: index [M] -> [M, K] float32"""
        per_output = {name: getattr(self, name) for name in _PER_OUTPUT}
        picked: dict[str, Any] = {
            name: None if t is None else _picked(t, index) for name, t in per_output.items()
        }
        return replace(self, **picked).dequantize()

    def dequantize(self) -> torch.Tensor:
        """Return the matrix that is meant. Shapes: [N, K] float32"""
        wide = self._in_order()
        if self.order is None:
            return wide
        ordered = torch.empty_like(wide)
        ordered[:, self.order] = wide
        return ordered

    def _in_order(self) -> torch.Tensor:
        """Return the matrix with its columns as stored. Shapes: [N, K] float32"""
        if self.fields is not None:
            return unpacked(self)._in_order()
        wide = self.values.float() if self.points is None else pointed(self)
        if self.scales is None:
            return wide
        if self.format == "int8":
            return wide * self.scales.unsqueeze(1)
        scales = self._spread(self.scales, self.steps)
        scales = scales if self.outer is None else scales * self.outer.unsqueeze(1)
        if self.table is not None:
            return self.table[self.values.int()] * scales
        if self.offsets is not None:
            return wide * scales + self._spread(self.offsets, self.offset_steps)
        if self.zeros is not None:
            return (wide - self._spread(self.zeros)) * scales
        return (wide - usual_zero(self.format)) * scales

    def _spread(self, scales: torch.Tensor, steps: torch.Tensor | None = None) -> torch.Tensor:
        """Return the values that groups share, repeated for every input. Shapes: [N, K / G] -> [N,
        K] float32"""
        inputs = self.shape[1]
        if steps is not None:
            own = steps.float().repeat_interleave(self.run // self.group, dim=1)
            scales = scales.float() * own[:, : scales.shape[1]]
        return scales.float().repeat_interleave(self.group, dim=1)[:, :inputs]


def integer_format(bits: int, activations: str) -> str:
    """Return the format of integers in groups: 2 to 6 or 8 bits, "int8" or "float" activations."""
    if activations == "int8":
        return f"int{bits}_int8"
    return "int8_float32" if bits == 8 else f"int{bits}"


def rounds_to_int8(format: str) -> bool:
    """Return whether a format's products make activations int8."""
    return format == "int8" or format.endswith("_int8")


def rounded_inputs(weight: Weight) -> int:
    """Return how many inputs of a row share a scale when activations become int8; 0 for all."""
    if weight.has_token_scales:
        return 0
    return gcd(weight.group, ROUNDED_INPUTS) if weight.group else ROUNDED_INPUTS


def narrow_bits(format: str) -> int:
    """Return the bits of a format of less than 8 bits in integers, 0 for another."""
    name = format.partition("_")[0].removeprefix("int")
    return int(name) if name in ("2", "3", "4", "5", "6") else 0


def is_trits(format: str) -> bool:
    """Return whether values are 0, 1 and 2."""
    return format.startswith("trits")


def pointed(weight: Weight) -> torch.Tensor:
    """Return the values of the codes of vectors. Shapes: [N, K] float32"""
    points = weight.points
    assert points is not None
    books = len(points)
    codes = (weight.values.int() & 0xFFFF).unflatten(1, (-1, books))
    values = sum(points[book].float()[codes[..., book]] for book in range(books))
    assert isinstance(values, torch.Tensor)
    if weight.signs is None:
        return values.flatten(1)
    places = torch.arange(8, dtype=torch.uint8, device=weight.signs.device)
    signs = 1 - 2 * (weight.signs.unsqueeze(-1) >> places & 1).float()
    return values.flatten(1) * signs.flatten(1)


def usual_zero(format: str) -> int:
    """Return the zero point if a weight stores none: the middle of unsigned values."""
    if is_trits(format):
        return 1
    bits = narrow_bits(format)
    return 1 << (bits - 1) if bits else 0


def unpacked(weight: Weight) -> Weight:
    """Return a matrix with a byte for each of the values that were fields of blocks, without views
    of these; any other unchanged."""
    if weight.fields is None:
        return weight
    blocks = weight.values.reshape(-1, weight.fields.block_bytes)
    run = bit_fields.OP.pick(blocks.device.type, torch.uint8)
    values: torch.Tensor = run(blocks=blocks, planes=weight.fields.planes)
    values = values.view(len(weight.values), -1)
    is_signed = weight.format.startswith("int8")
    own: dict[str, Any] = {
        name: tensor.contiguous()
        for name in _PER_OUTPUT
        if (tensor := getattr(weight, name)) is not None
    }
    own["values"] = values.view(torch.int8) if is_signed else values
    return replace(weight, fields=None, **own)


def spelled_out(weight: Weight, dtype: torch.dtype) -> Weight:
    """Return a matrix of trits as one of 2 bits, of vectors as one value by value, for
    implementations without such products, and fields as bytes; any other unchanged. Numbers without
    codes get the activations' dtype."""
    weight = unpacked(weight)
    if weight.points is not None:
        return _spelled(weight, dtype)
    if not is_trits(weight.format):
        return weight
    activations, values = "int8" if rounds_to_int8(weight.format) else "float", weight.values
    format = integer_format(2, activations)
    if weight.zeros is None and weight.offsets is None:
        values = values + (usual_zero(format) - usual_zero(weight.format))
    return replace(weight, format=format, values=values)


def _spelled(weight: Weight, dtype: torch.dtype) -> Weight:
    """Return a matrix of vectors with one value per input: integers of 4 bits, codes of a table if
    points have few others, else plain floats."""
    assert weight.points is not None
    if weight.points.is_floating_point():
        wide = weight._in_order()
        fits = not wide.numel() or float(wide.abs().max()) < torch.finfo(dtype).max
        format = next(f for f, own in FLOATS.items() if own == dtype) if fits else "bfloat16"
        return Weight(format=format, values=wide.to(FLOATS[format]), order=weight.order)
    rest = replace(weight, points=None, signs=None)
    numbers, found = pointed(weight).to(torch.int8), weight.points.unique()
    levels = found if weight.signs is None else torch.cat([found, -found]).unique()
    activations = "int8" if rounds_to_int8(weight.format) else "float"
    if levels.min() >= -8 and levels.max() <= 7:
        values = (numbers + 8).to(torch.uint8)
        return replace(rest, format=integer_format(4, activations), values=values)
    if len(levels) > 16:
        return replace(rest, format=integer_format(8, activations), values=numbers)
    places = torch.zeros(256, dtype=torch.uint8, device=numbers.device)
    places[levels.long() + 128] = torch.arange(len(levels)).to(places)
    table = torch.zeros(16, device=numbers.device)
    table[: len(levels)] = levels.float()
    return replace(rest, format="table4", values=places[numbers.int() + 128], table=table)


def join(weights: Sequence[Weight]) -> Weight | None:
    """Return matrices of one kind as one, along the outputs; None if they differ in kind."""
    first = weights[0]
    if len(weights) == 1:
        return first
    for other in weights[1:]:
        kinds = [_kind(w) for w in (first, other)]
        if kinds[0] != kinds[1]:
            return None
        if not all(_same(getattr(first, n), getattr(other, n)) for n in ("order", *SHARED)):
            return None
    joined: dict[str, Any] = {
        name: _cat([getattr(w, name) for w in weights]) for name in _PER_OUTPUT
    }
    return replace(first, **joined)


def _kind(weight: Weight) -> tuple[Any, ...]:
    """Return the facts that matrices must share to be stacked."""
    there = (getattr(weight, name) is not None for name in _PER_OUTPUT)
    rounding = (weight.has_float8_activations, weight.has_token_scales)
    return (weight.format, weight.group, weight.run, weight.fields, *rounding, *there)


def _picked(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows of a tensor; torch picks none of float8."""
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8)[index].view(tensor.dtype)
    return tensor[index]


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _cat(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    there = [t for t in tensors if t is not None]
    return torch.cat(there) if there else None


def quantize_int8(weight: torch.Tensor) -> Weight:
    """Return the nearest int8 matrix, one scale per output. Shapes: weight [N, K]"""
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for part in _parts(weight):
        wide = weight[part].to(torch.float32, copy=True)
        scale = wide.abs().amax(dim=1, keepdim=True).div_(127.0).clamp_(min=1e-12)
        values[part] = wide.div_(scale).round_().clamp_(-127, 127)
        scales[part] = scale.squeeze(1)
    return Weight(format="int8", values=values, scales=scales)


def quantize_int8_groups(weight: torch.Tensor, group: int) -> Weight:
    """Return the nearest int8 matrix, a scale per output and group of inputs: `int8_float32`.

    Shapes: weight [N, K]
    """
    outputs, inputs = weight.shape
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(outputs, -(-inputs // group), device=weight.device)
    for part in _parts(weight):
        wide = torch.nn.functional.pad(weight[part].float(), (0, -inputs % group))
        quantized = quantize_int8(wide.view(-1, group))
        assert quantized.scales is not None
        values[part] = quantized.values.view(len(wide), -1)[:, :inputs]
        scales[part] = quantized.scales.view(len(wide), -1)
    return Weight(format="int8_float32", values=values, scales=scales, group=group)


def quantize_int4(
    weight: torch.Tensor, group: int, *, format: str = "int4_int8", is_symmetric: bool = True
) -> Weight:
    """Return a 4-bit matrix, one scale per output and group of inputs. Shapes: weight [N, K]

    Symmetric: the value of largest magnitude in a group becomes -8 (the scale takes its sign), so
    that all sixteen levels are used. Otherwise the group's range, zero included, is spread over
    them. Scales are bfloat16; values are rounded using the stored scale.
    """
    outputs, inputs = weight.shape
    groups = -(-inputs // group)
    values = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(outputs, groups, dtype=torch.bfloat16, device=weight.device)
    zeros = None if is_symmetric else torch.empty_like(scales)
    for part in _parts(weight):
        wide = weight[part].to(torch.float32, copy=True)
        padded = torch.nn.functional.pad(wide, (0, -inputs % group))
        grouped = padded.view(len(padded), groups, group)
        scale, zero = _grid(grouped, is_symmetric=is_symmetric)
        levels = grouped.div_(scale.float()).add_(zero.float()).round_().clamp_(0, 15)
        values[part] = levels.view(len(padded), -1)[:, :inputs]
        scales[part] = scale.squeeze(2)
        if zeros is not None:
            zeros[part] = zero.squeeze(2)
    return Weight(format=format, values=values, scales=scales, zeros=zeros, group=group)


def quantize_float8(
    weight: torch.Tensor, group: int = 0, *, has_float8_activations: bool = False
) -> Weight:
    """Return the nearest e4m3 matrix, a scale per output and group of inputs (0: all of them).

    Shapes: weight [N, K]
    """
    outputs, inputs = weight.shape
    group = group or -(-inputs // 8) * 8
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(outputs, -(-inputs // group), device=weight.device)
    for part in _parts(weight):
        wide = weight[part].to(torch.float32, copy=True)
        grouped = torch.nn.functional.pad(wide, (0, -inputs % group)).view(len(wide), -1, group)
        scale = grouped.abs().amax(dim=2, keepdim=True).div_(FLOAT8_LARGEST).clamp_(min=1e-12)
        near = grouped.div(scale).clamp_(-FLOAT8_LARGEST, FLOAT8_LARGEST)
        values[part] = near.view(len(wide), -1)[:, :inputs].to(torch.float8_e4m3fn)
        scales[part] = scale.squeeze(2)
    return Weight(
        format="float8",
        values=values,
        scales=scales,
        group=group,
        has_float8_activations=has_float8_activations,
    )


def quantize_table4(
    weight: torch.Tensor, group: int, table: torch.Tensor, *, dtype: torch.dtype = torch.float32
) -> Weight:
    """Return the nearest codes of a table, a scale per output and group of inputs: the group's
    largest magnitude over the table's. Shapes: weight [N, K], table [16]
    """
    outputs, inputs = weight.shape
    order = table.argsort()
    middles = (table[order][1:] + table[order][:-1]) / 2
    values = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(outputs, -(-inputs // group), dtype=dtype, device=weight.device)
    for part in _parts(weight):
        wide = weight[part].to(torch.float32, copy=True)
        grouped = torch.nn.functional.pad(wide, (0, -inputs % group)).view(len(wide), -1, group)
        scale = grouped.abs().amax(dim=2, keepdim=True) / table.abs().max()
        scale = scale.clamp_(min=1e-12).to(dtype)
        near = order[torch.bucketize(grouped / scale.float(), middles)]
        values[part] = near.view(len(wide), -1)[:, :inputs].to(torch.uint8)
        scales[part] = scale.squeeze(2)
    return Weight(format="table4", values=values, scales=scales, table=table, group=group)


def _grid(grouped: torch.Tensor, *, is_symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return step and zero point of every group. Shapes: [N, groups, G] -> [N, groups, 1]"""
    low, high = grouped.amin(2, keepdim=True), grouped.amax(2, keepdim=True)
    if is_symmetric:
        scales = torch.where(-low >= high, low, high) / -8.0
        scales = torch.where(scales == 0, torch.ones_like(scales), scales).bfloat16()
        return scales, torch.full_like(scales, 8.0)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = ((high - low) / 15).clamp(min=1e-12).bfloat16()
    return scales, (-low / scales.float()).round().clamp(0, 15).bfloat16()


def _parts(weight: torch.Tensor) -> list[slice]:
    """Return slices of rows small enough that their results stay in the cache."""
    rows = max(1, PART_VALUES // max(1, weight.shape[1]))
    return [slice(i, i + rows) for i in range(0, len(weight), rows)]
