"""gemm on the native CPU library: weights packed once, then one call a product.

A Packed holds its argument struct ready: a call sets a few numbers and goes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.cpu.row_stride import row_stride
from dovetail_kernels.gemm.native_args import GemmArgs, GroupArgs, PackArgs, RowsArgs
from dovetail_kernels.gemm.native_pack import (
    address,
    pack_args,
    pack_into,
    pack_panels,
    spread_over,
    takes_rows,
)
from dovetail_kernels.gemm.native_vectors import halved_codes, point_args, vector_args
from dovetail_kernels.gemm.weight import (
    FORMATS,
    SCALES,
    Weight,
    narrow_bits,
    rounded_inputs,
)
from dovetail_kernels.op import Arguments

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")
KERNELS = {
    "int8": "gemm_int8",
    "int4_int8": "gemm_int8",
    "int8_int8": "gemm_int8",
    "int2_int8": "gemm_int8",
    "int3_int8": "gemm_int8",
    "int5_int8": "gemm_int8",
    "int6_int8": "gemm_int8",
    "bfloat16_bfloat16": "gemm_bf16",
    "vectors": "gemm_vectors",
    "vectors_int8": "gemm_vectors",
    "trits": "gemm_vectors",
    "trits_int8": "gemm_vectors",
}
ROUNDED = ("float8", "table4", "int8_float32", "int2", "int3", "int4", "int5", "int6")
"""Formats with float activations that are also multiplied by activations in bfloat16: their values
are exact in it, a table's are rounded to it."""
LOW_CODES = 64
"""The format of scales whose bytes hold another code as well (args.h)."""
CODES = {name: code for code, name in enumerate((*ACTIVATIONS, "swiglu_oai", "silu_clamped"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFacts:
    """What a packed weight is, except its tensors.

    `out_size` counts the rows of both halves of a gated weight. `panels`: panels and columns of
    each. `has_pairs`: the bytes of `scales` hold the offsets' codes too. `has_signs`: codes of
    vectors have signs. The rest are arguments of the kernels (args.h).
    """

    format: str
    is_gated: bool
    rounds_activations: bool
    in_size: int
    out_size: int
    panels: tuple[int, ...]
    group: int
    rounded_inputs: int
    scale_format: int
    step_format: int
    run_shift: int
    has_pairs: bool
    has_signs: bool


class Packed:
    """A weight in the layout that this machine's products read, ready to be multiplied.

    The weight's own tensors are not stored. `is_gated`: the first half of the outputs is the gate.
    `rounds_activations`: to bfloat16, before a product of one of `ROUNDED` formats.
    """

    def __init__(
        self,
        weight: Weight,
        *,
        is_gated: bool = False,
        rounds_activations: bool = False,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        outputs, inputs = weight.shape
        vectors = vector_args(weight)
        pointer = None if vectors is None else ctypes.pointer(vectors)
        data, panels = pack_panels(native, weight, is_gated, pointer)
        paired, halved = _paired_codes(weight), halved_codes(weight)
        codes = halved if paired is None else paired
        spread = partial(spread_over, panels=panels, is_gated=is_gated, native=native)
        scales = spread(weight.scales if codes is None else codes)
        steps = spread(weight.steps)
        tensors = {
            "packed": data,
            "points": weight.points,
            "scales": scales,
            "zeros": spread(weight.zeros),
            "offsets": None if paired is not None else spread(weight.offsets),
            "steps": steps,
            "offset_steps": spread(weight.offset_steps),
            "table": None if weight.table is None else weight.table.float().contiguous(),
            "outer": spread(weight.outer),
        }
        facts = PackedFacts(
            format=weight.format,
            is_gated=is_gated,
            rounds_activations=rounds_activations and weight.format in ROUNDED,
            in_size=inputs,
            out_size=outputs,
            panels=panels,
            group=weight.group,
            rounded_inputs=rounded_inputs(weight),
            scale_format=_scale_format(scales) if codes is None else LOW_CODES,
            step_format=_scale_format(steps),
            run_shift=0 if steps is None else (weight.run // weight.group).bit_length() - 1,
            has_pairs=paired is not None,
            has_signs=weight.signs is not None,
        )
        self._take(facts, {name: t for name, t in tensors.items() if t is not None}, native)

    @classmethod
    def restored(cls, facts: PackedFacts, tensors: Mapping[str, torch.Tensor]) -> Packed:
        """Return a weight by the `facts` and `all_tensors` of one that was packed with the same
        instruction set, by the same version of the library. The tensors are not copied."""
        packed = cls.__new__(cls)
        packed._take(facts, tensors, needed_library())
        return packed

    def pack_rows(self, rows: np.ndarray) -> None:
        """Pack another weight of the same shape and type over this one. Row i of it is at address
        rows[i]. Shapes: rows [N] int64. Mutates: the packed bytes"""
        facts = self.facts
        assert takes_rows(facts.format) and rows.shape == (facts.out_size,)
        args = pack_args(facts.format, facts.out_size, facts.in_size, is_gated=facts.is_gated)
        args.rows = rows.ctypes.data
        pack_into(args, self.data, needed_library().kernel("gemm_pack", PackArgs))

    def _take(
        self, facts: PackedFacts, tensors: Mapping[str, torch.Tensor], native: Library
    ) -> None:
        """Prepare the kernels' arguments. Mutates: self"""
        self.facts = facts
        self.format, self.is_gated = facts.format, facts.is_gated
        self.rounds_activations = facts.rounds_activations
        self.in_size = facts.in_size
        self.out_size = facts.out_size // 2 if facts.is_gated else facts.out_size
        self._panels = facts.panels
        self.data, self.points = tensors["packed"], tensors.get("points")
        self.scales, self.zeros = tensors.get("scales"), tensors.get("zeros")
        self.offsets, self.steps = tensors.get("offsets"), tensors.get("steps")
        self.offset_steps, self.table = tensors.get("offset_steps"), tensors.get("table")
        self.outer = tensors.get("outer")
        is_of_vectors = KERNELS.get(self.format) == "gemm_vectors"
        vectors = point_args(self.points, has_signs=facts.has_signs) if is_of_vectors else None
        own = KERNELS.get(self.format, "gemm_float")
        name = "gemm_bf16" if self.rounds_activations else own
        self._kernel = native.kernel(name, GemmArgs)
        self._args = GemmArgs(
            weight=self.data.data_ptr(),
            scales=address(self.scales),
            zeros=address(self.zeros),
            offsets=address(self.scales if facts.has_pairs else self.offsets),
            steps=address(self.steps),
            offset_steps=address(self.offset_steps),
            table=address(self.table),
            outer=address(self.outer),
            vectors=None if vectors is None else ctypes.pointer(vectors),
            in_size=facts.in_size,
            out_size=facts.out_size,
            group=facts.group,
            rounded_inputs=facts.rounded_inputs,
            format=FORMATS.index(self.format),
            is_gated=int(self.is_gated),
            scale_format=facts.scale_format,
            step_format=facts.step_format,
            run_shift=facts.run_shift,
        )
        self.reference = ctypes.byref(self._args)
        self.group_kernel = native.kernel(f"{name}_group", GroupArgs)
        self.group_address = native.address(f"{name}_group")
        prefix = "vectors" if is_of_vectors else "gemm"
        self._rows_kernel = native.kernel(f"{prefix}_rows", RowsArgs)

    def __call__(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        """Return act(x W^T + bias) + residual.

        x may be a slice with strided rows; the others are contiguous. All float32.
        Shapes: x [M, K], bias [N] or [M, N] (gated: 2 N), residual [M, N] -> [M, N]
        """
        out = torch.empty((x.shape[0], self.out_size))
        self.multiply_into(out, x, bias, residual, activation)
        return out

    def multiply_into(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
        column: int = 0,
    ) -> None:
        """Write act(x W^T + bias) + residual from a column of `out` on. Mutates: out

        bias and residual are as wide as out (a gated product's bias twice that).
        Shapes: x [M, K], out and residual [M, N or more], bias one row or M contiguous ones
        """
        rows, args, start = x.shape[0], self._args, 4 * column
        args.x, args.x_stride, args.rows = x.data_ptr(), row_stride(x), rows
        args.out, args.out_stride = out.data_ptr() + start, out.shape[1]
        args.bias = None if bias is None else bias.data_ptr() + start
        args.bias_stride = 0 if bias is None or bias.dim() == 1 else bias.shape[1]
        args.residual = None if residual is None else residual.data_ptr() + start
        args.activation = CODES[activation]
        if self._kernel(self.reference):
            raise MemoryError(f"no memory for {rows} rows of {self.in_size}")

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T of a gated weight, both halves side by side. Shapes: x [M, K] -> [M, N]"""
        panels, columns = self._panels
        args = GemmArgs.from_buffer_copy(self._args)
        out = torch.empty((x.shape[0], panels * columns))
        args.x, args.x_stride, args.rows = x.data_ptr(), row_stride(x), x.shape[0]
        args.out, args.out_stride = out.data_ptr(), out.shape[1]
        args.bias = args.residual = None
        args.activation, args.is_gated, args.out_size = CODES["none"], 0, out.shape[1]
        if self._kernel(ctypes.byref(args)):
            raise MemoryError(f"no memory for {x.shape[0]} rows of {self.in_size}")
        sides = out.view(-1, panels, 2, columns // 2).transpose(1, 2).flatten(2)
        return sides[:, :, : self.out_size].flatten(1)

    def rows(self, index: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return rows of the matrix that is meant, whose first one has the number `first`; zeros
        for others. Shapes: index [M] int64 -> [M, K] float32

        Not for gated weights.
        """
        assert not self.is_gated
        out = torch.empty((len(index), self.in_size))
        if not len(index):
            return out
        self._rows_kernel(
            ctypes.byref(
                RowsArgs(
                    index=index.data_ptr(),
                    out=out.data_ptr(),
                    weight=self._args.weight,
                    scales=self._args.scales,
                    zeros=self._args.zeros,
                    offsets=self._args.offsets,
                    steps=self._args.steps,
                    offset_steps=self._args.offset_steps,
                    table=self._args.table,
                    outer=self._args.outer,
                    vectors=self._args.vectors,
                    count=len(index),
                    in_size=self.in_size,
                    out_size=self._args.out_size,
                    group=self._args.group,
                    first=first,
                    format=self._args.format,
                    scale_format=self._args.scale_format,
                    step_format=self._args.step_format,
                    run_shift=self._args.run_shift,
                )
            )
        )
        return out

    @property
    def kind(self) -> tuple[str, bool]:
        """Return the kind of a weight: weights of one kind can be multiplied in one call."""
        return self.format, self.rounds_activations

    @property
    def layout(self) -> str:
        """Return a text of the properties outside `tensors` (see Matrix)."""
        args = self._args
        numbers = (args.group, args.rounded_inputs, args.scale_format, args.step_format)
        return f"{self.kind} {self.in_size} {self.out_size} {numbers} {args.run_shift}"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the stored tensors, by name. int8 points belong to the type: one table for all of
        its weights."""
        is_own = self.points is not None and self.points.is_floating_point()
        tensors = self.all_tensors()
        return {name: t for name, t in tensors.items() if name != "points" or is_own}

    def all_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that `restored` takes, by name: points of a type too."""
        tensors = {
            "packed": self.data,
            "points": self.points,
            "scales": self.scales,
            "zeros": self.zeros,
            "offsets": self.offsets,
            "steps": self.steps,
            "offset_steps": self.offset_steps,
            "table": self.table,
            "outer": self.outer,
        }
        return {name: t for name, t in tensors.items() if t is not None}

    @property
    def num_bytes(self) -> int:
        """Return the bytes that this weight takes."""
        return sum(t.nbytes for t in self.tensors().values())


def multiply_beside(
    weights: Sequence[Packed],
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the products by several matrices side by side, plus bias and residual.

    Shapes: x [M, K], bias [sum of N] or one for each row, residual [M, sum of N], both contiguous
    -> [M, sum of N]
    """
    out = torch.empty((x.shape[0], sum(weight.out_size for weight in weights)))
    column = 0
    for weight in weights:
        weight.multiply_into(out, x, bias, residual, column=column)
        column += weight.out_size
    return out


def multiply_groups(
    weights: Sequence[Packed], x: torch.Tensor, counts: Sequence[int], activation: str = "none"
) -> torch.Tensor:
    """Return the products of consecutive groups of rows, each with its own weight, in one call.

    `counts[i]` rows belong to weights[i]; all weights have one format and shape.
    Shapes: x [sum of counts, K] contiguous -> [sum of counts, N]
    """
    first = weights[0]
    out = torch.empty((x.shape[0], first.out_size))
    items = (GemmArgs * len(weights))()
    row, used, stride = 0, 0, row_stride(x)
    for weight, count in zip(weights, counts, strict=True):
        if not count:
            continue
        item = items[used]
        ctypes.memmove(ctypes.byref(item), weight.reference, ctypes.sizeof(GemmArgs))
        item.x, item.x_stride, item.rows = x.data_ptr() + 4 * row * stride, stride, count
        item.out, item.out_stride = out.data_ptr() + 4 * row * first.out_size, first.out_size
        item.bias = item.residual = None
        item.activation = CODES[activation]
        row, used = row + count, used + 1
    if first.group_kernel(ctypes.byref(GroupArgs(items, used))):
        raise MemoryError(f"no memory for {x.shape[0]} rows of {first.in_size}")
    return out


def _paired_codes(weight: Weight) -> torch.Tensor | None:
    """Return scales and offsets in the halves of a byte, if either fits in 4 bits.

    Only for values of 2 bits, where they would take half as much as the values.
    Shapes: [N, K / G] uint8
    """
    scales, offsets = weight.scales, weight.offsets
    if narrow_bits(weight.format) != 2 or scales is None or offsets is None:
        return None
    both = (scales, offsets)
    if any(t.dtype != torch.int8 or not t.numel() or t.min() < 0 or t.max() > 15 for t in both):
        return None
    return (scales | offsets << 4).view(torch.uint8)


def _scale_format(scales: torch.Tensor | None) -> int:
    if scales is None:
        return 0
    return FORMATS.index(next(name for name, dtype in SCALES.items() if dtype == scales.dtype))


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the weight packed, once for many calls."""
    packed = Packed(arguments["weight"], is_gated=arguments.get("is_gated", False))
    return {**arguments, "weight": packed}


def _multiply(
    x: torch.Tensor,
    weight: Packed,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    activation: str = "none",
    is_gated: bool = False,
) -> torch.Tensor:
    """Return the product by a packed weight (see Packed.__call__)."""
    assert weight.is_gated == is_gated
    return weight(x, bias, residual, activation)


NATIVE = native_implementation(_multiply, prepare=_prepare)
