"""GpuPacked: a weight as Triton's products read it, and one call a product.

Codes are in panels: H words of every output, then the next H words of every output, so that a tile
of any outputs is contiguous. A word is a code of 8 bits, or four of 2 or 4 bits; the upper bits of
3-, 5- and 6-bit codes are separate (`highs`). Scales and similar tensors are grouped by input
group. Plain floats are unchanged. Several experts' weights may be concatenated. Knows no layer;
needs Triton when it multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch

from dovetail_kernels.gemm.instructions import instructions
from dovetail_kernels.gemm.panels import (
    CODES,
    KINDS,
    PLANES,
    TENSORS,
    codes_of,
    has_whole_zeros,
    kind_of,
    moved,
    paired,
    panel_of,
    panels,
    scaling_of,
    turned,
)
from dovetail_kernels.gemm.tiles import MAX_SPLIT_ROWS, Tiles, Work, parts_of, tiles
from dovetail_kernels.gemm.weight import Weight, rounds_to_int8, spelled_out, usual_zero
from dovetail_kernels.gpu import interprets
from dovetail_kernels.op import Arguments

MIN_INTEGER_PANEL = 32
ROW_BLOCK = 4096
WIDE_ROWS = 512
"""From here on codes are spelled out first, and the device's own library multiplies: unpacking in
every tile of rows costs more then than to write the matrix and read it again."""
SPELLED = 64
"""Outputs that a program spells out."""
KEPT = ("highs", *TENSORS)
"""The tensors of a packed weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Pairs of a token and an expert, sorted by expert into blocks of rows of one expert.

    `pair_of` int32 [blocks * rows]: the pair in a row, `pairs` or more for none. `expert_of` int32
    [blocks]: -1 for a block of no expert. `picked`: pairs of a row of x. `weights` float32 [pairs]
    multiply what comes out, if there are any.
    """

    pair_of: torch.Tensor
    expert_of: torch.Tensor
    pairs: int
    picked: int
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPacked:
    """A weight, or several experts' weights, ready to be multiplied on the device.

    `scaling`: at which point scales are multiplied in (see the kernel's `_add`). `panel`: H.
    `is_paired`: scales are whole numbers of four bits with offsets above them, for which there is
    no tensor. Shapes: values [panels, N, H] (with experts [X, panels, N, H]; floats [N, K]), highs
    the same or of half the panels, scales and similar tensors [groups, N], outer [N], table [16]
    """

    format: str
    kind: str
    activations: str
    scaling: str
    is_gated: bool
    is_integer: bool
    has_whole_zeros: bool
    is_paired: bool
    in_size: int
    stored: int
    panel: int
    group: int
    run: int
    center: int
    num_experts: int
    values: torch.Tensor
    highs: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    steps: torch.Tensor | None = None
    offset_steps: torch.Tensor | None = None
    outer: torch.Tensor | None = None
    table: torch.Tensor | None = None

    @property
    def out_size(self) -> int:
        """Return the outputs that a product has."""
        return self.stored // 2 if self.is_gated else self.stored

    @property
    def num_panels(self) -> int:
        """Return the panels of one expert."""
        return -(-self.in_size // (self.panel * self.codes))

    @property
    def codes(self) -> int:
        """Return the codes of a word."""
        return CODES if self.kind in PLANES else 1

    @property
    def num_bytes(self) -> int:
        """Return the bytes that this weight takes."""
        return sum(t.nbytes for t in self.tensors().values())

    @property
    def layout(self) -> str:
        """Return a text of the properties outside `tensors`, and of the table (see Matrix)."""
        rest = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in KEPT]
        return f"{rest} {None if self.table is None else self.table.tolist()}"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the stored tensors, by name."""
        tensors = {name: getattr(self, name) for name in KEPT}
        return {name: t for name, t in tensors.items() if t is not None}

    def __call__(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        """Return act(x W^T + bias) + residual, or act(gate) * up. Shapes: x [M, K] -> [M, N or F]

        Rows of x and residual may be strided; a bias of each row, [M, N or 2 F], is contiguous.
        """
        rows = x.shape[0]
        out = torch.empty((rows, self.out_size), dtype=x.dtype, device=x.device)
        if not rows:
            return out
        if rows >= WIDE_ROWS and self.kind != "float" and self.activations == "float":
            return self._multiply_spelled(x, out, bias, residual, activation)
        plan = self.plan(rows, x)
        plan = replace(plan, parts=parts_of(rows, self.stored, self.num_panels))
        if plan.parts == 1:
            self._launch(x, plan, out, bias, residual, activation)
            return out
        sums = torch.empty((plan.parts, rows, self.stored), dtype=torch.float32, device=x.device)
        self._launch(x, plan, sums, None, None, "none")
        return self._finished(sums, out, bias, residual, activation)

    def _finished(
        self,
        sums: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        activation: str,
    ) -> torch.Tensor:
        """Return `out`, made of its sums in parts. Shapes: sums [parts, M, N]. Mutates: out"""
        parts, rows, _ = sums.shape
        block = min(1024, 1 << (self.out_size - 1).bit_length())
        _kernels().finish[rows, -(-self.out_size // block)](
            sums, bias, residual, 0 if residual is None else residual.stride(0), out,
            out.stride(0), rows, self.out_size, self.stored,
            PARTS=parts, BIAS_ROWS=_has_rows(bias), IS_GATED=self.is_gated,
            ACTIVATION=activation, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return out

    def _multiply_spelled(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        activation: str,
    ) -> torch.Tensor:
        """Return `out`, multiplied by the spelled out matrix. Mutates: out"""
        turned = self.spelled(x.dtype).t()
        if not (self.is_gated or bias is not None or residual is not None or activation != "none"):
            return torch.mm(x, turned, out=out)
        return self._finished(torch.mm(x, turned).unsqueeze(0), out, bias, residual, activation)

    def spelled(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix that is meant, of packed codes. Shapes: -> [N, K], of a gated weight
        [2 F, K]"""
        matrix = torch.empty((self.stored, self.in_size), dtype=dtype, device=self.values.device)
        low, high = PLANES.get(self.kind, (0, 0))
        grid = (-(-self.stored // SPELLED), self.num_panels)
        import_module("dovetail_kernels.gemm.spelled").spell[grid](
            self.values, self.highs, self.stored * self.panel, _bytes(self.scales), self.zeros,
            self.scales if self.is_paired else self.offsets, self.steps, self.offset_steps,
            self.outer, self.table, matrix, self.in_size, self.stored, _height(self.scales),
            KIND=self.kind, LOW=low, HIGH=high, CENTER=self.center,
            SCALING="inside" if self.scaling == "after" else self.scaling, PAIRED=self.is_paired,
            CODES=self.codes, GROUP=self.group, RUN=self.run, H=self.panel, BN=SPELLED,
            num_warps=4,
        )  # fmt: skip
        return matrix

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T, of a gated weight both halves side by side. Shapes: x [M, K] -> [M, N]"""
        return replace(self, is_gated=False)(x)

    def plan(self, rows: int, x: torch.Tensor) -> Tiles:
        """Return the tiles for `rows` rows like x's, in one part."""
        return tiles(rows, self.work(x), x.device)

    def work(self, x: torch.Tensor) -> Work:
        """Return the work that determines the tiles, for rows like x's."""
        low, high = PLANES.get(self.kind, (8 * self.values.itemsize // CODES, 0))
        itemsize = x.itemsize if self.activations == "float" else 1
        dot = self._dot(x.dtype)
        has_own_sums = self.scaling == "after" and self._shared() < self.codes
        return Work(
            kind=self.kind,
            dot_type=dot.name,
            has_own_sums=has_own_sums,
            word_bytes=self.panel * (low * CODES // 8 + (high > 0)),
            input_bytes=self.panel * self.codes * itemsize,
        )

    def multiply_sorted(
        self,
        x: torch.Tensor,
        order: Sorted,
        plan: Tiles,
        activation: str = "none",
        *,
        biases: torch.Tensor | None = None,
        limit: float = 0.0,
    ) -> torch.Tensor:
        """Return each pair's row times its expert's matrix, plus its bias, at the pair's place.
        `limit` is that of gates that clamp.

        Shapes: x [pairs / picked, K], biases [X, N], contiguous -> [pairs, N or F]
        """
        out = torch.empty((order.pairs, self.out_size), dtype=x.dtype, device=x.device)
        self._launch(x, plan, out, biases, None, activation, order, limit)
        return out

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows of the matrix that is meant. Shapes: index [M] int64 -> [M, K] float32"""
        codes = self._codes(index)
        if self.scaling == "none":
            wide = codes.float() - self.center
            if self.table is not None:
                wide = self.table[codes.int()]
            return wide if self.outer is None else wide * self.outer[index].unsqueeze(1)
        scales, offsets = _picked(self.scales, index), _picked(self.offsets, index)
        if self.is_paired and scales is not None:
            scales, offsets = scales & 15, scales >> 4
        return Weight(
            format=self.format,
            values=codes,
            scales=scales,
            zeros=_picked(self.zeros, index),
            offsets=offsets,
            steps=_picked(self.steps, index),
            offset_steps=_picked(self.offset_steps, index),
            run=self.run * self.group,
            table=self.table,
            outer=None if self.outer is None else self.outer[index],
            group=self.group,
        ).dequantize()

    def _codes(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows of codes in the inputs' order. Shapes: index [M] -> [M, K]"""
        if self.kind == "float":
            return self.values[index]
        highs = None if self.highs is None else self.highs[:, index]
        codes = codes_of(self.values[:, index], highs, self.kind)
        codes = codes[:, : self.in_size].contiguous()
        return codes.view(torch.float8_e4m3fn) if self.kind == "float8" else codes

    def _launch(
        self,
        x: torch.Tensor,
        plan: Tiles,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        activation: str,
        order: Sorted | None = None,
        limit: float = 0.0,
    ) -> None:
        """Multiply into `out`; in parts, into their sums. Mutates: out"""
        dot = self._dot(x.dtype)
        text, places = self._text(dot)
        is_narrow = self.scaling == "after" and self.panel < MIN_INTEGER_PANEL
        scaling = "inside" if is_narrow and plan.rows > MAX_SPLIT_ROWS else self.scaling
        x, x_scales = self._rounded(x)
        is_float8, is_packed = x.dtype == torch.float8_e4m3fn, self.kind != "float"
        rows, pairs, picked = x.shape[0], 0, 1
        sorting: tuple[torch.Tensor | None, ...] = (None, None, None)
        if order is not None:
            rows, pairs, picked = len(order.pair_of), order.pairs, order.picked
            sorting = (order.pair_of, order.expert_of, order.weights)
        size, (low, high) = self.panel, PLANES.get(self.kind, (0, 0))
        strides = (self.stored * size, size) if is_packed else (size, self.in_size)
        grid = (-(-rows // plan.rows) * -(-self.stored // plan.outputs), plan.parts)
        _kernels().product[grid](
            x.view(torch.uint8) if is_float8 else x, x.stride(0), x_scales,
            self.values, self.highs, *strides, self.values[0].numel() if order else 0,
            self.highs[0].numel() if order and self.highs is not None else 0,
            _bytes(self.scales), self.zeros, self.scales if self.is_paired else self.offsets,
            self.steps, self.offset_steps, self.outer, self.table,
            bias, residual, 0 if residual is None else residual.stride(0), *sorting,
            out, out.stride(0), rows, self.in_size, self.stored, _height(self.scales),
            _height(self.steps), self.num_panels, pairs, -(-self.num_panels // plan.parts),
            KIND=self.kind, LOW=low, HIGH=high, CENTER=self.center, SCALING=scaling,
            PAIRED=self.is_paired, dot_type=dot, TEXT=text, PLACES=places,
            IS_CENTERED=text != "" and self.has_whole_zeros, FLOAT8_X=is_float8,
            IS_PADDED=is_packed or self.in_size % size == 0,
            BIAS_ROWS=order is None and _has_rows(bias), IS_GATED=self.is_gated,
            IS_SPLIT=plan.parts > 1, ACTIVATION=activation, LIMIT=limit, PICKED=picked,
            GROUP=self.group, RUN=self.run, CODES=self.codes,
            SHARED=self._shared(), H=size, BN=plan.outputs, BM=plan.rows,
            num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip

    def _text(self, dot: Any) -> tuple[str, str]:
        """Return the device's own instructions that unpack codes, and their registers; none if
        plain arithmetic does it."""
        if interprets() or self.kind not in PLANES or self.kind == "table4":
            return "", ""
        has_text = dot.name in ("int8", "bf16", "fp16")
        return instructions(self.kind, dot.name) if has_text else ("", "")

    def _shared(self) -> int:
        """Return how many of a word's codes have one scale."""
        shared = self.codes
        while shared > 1 and self.group % (shared * self.panel):
            shared //= 2
        return shared

    def _dot(self, dtype: torch.dtype) -> Any:
        """Return the type that is multiplied for activations of a dtype."""
        types = _kernels().tl
        if self.activations == "int8" and self.is_integer:
            return types.int8
        if interprets():
            return types.float32
        if self.activations == "float8":
            return types.float8e4nv
        if self.format == "bfloat16_bfloat16":
            return types.bfloat16
        known = {torch.bfloat16: types.bfloat16, torch.float16: types.float16}
        return known.get(dtype, types.float32)

    def _rounded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return rows in the product's type, and scales. Shapes: x [M, K] -> same, [M]"""
        if self.format == "bfloat16_bfloat16":
            return x.bfloat16(), None
        if self.activations == "float":
            return (x if x.stride(1) == 1 else x.contiguous()), None
        dtype = torch.int8 if self.activations == "int8" else torch.float8_e4m3fn
        return round_rows(x, dtype)


def round_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in 8 bits and their scales. Shapes: x [M, K] -> same, [M]"""
    rows, inputs = x.shape
    rounded = torch.empty((rows, inputs), dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = min(ROW_BLOCK, 1 << (inputs - 1).bit_length())
    _kernels().round_rows[(rows,)](
        x, x.stride(0), rounded, scales, inputs,
        LARGEST=127 if dtype == torch.int8 else 448, BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return rounded, scales


def is_packed(format: str) -> bool:
    """Return whether weights of a format are packed for the device; others are plain floats."""
    return format in KINDS


def pack(
    weight: Weight,
    *,
    device: torch.device | str | None = None,
    is_gated: bool = False,
    has_float8_activations: bool = False,
    dtype: torch.dtype = torch.float32,
) -> GpuPacked:
    """Return a weight in panels, on the device. Its order, if it has one, is the caller's to apply.

    `is_gated`: the first half of the outputs is the gate of the second. `has_float8_activations`:
    rows become e4m3 for products with float8. `dtype`: see `spelled_out`.
    """
    kind, weight = kind_of(spelled_out(moved(weight, device), dtype))
    has_shift = weight.zeros is not None or weight.offsets is not None
    is_whole = weight.scales is None or weight.format == "int8" or weight.scales.shape[1] == 1
    activations = "int8" if rounds_to_int8(weight.format) else "float"
    if kind == "float8" and has_float8_activations:
        activations = "float8"
    scaling = "none" if is_whole and not has_shift else scaling_of(weight, is_whole=is_whole)
    panel = panel_of(weight, kind, scaling, is_large=activations != "float")
    is_whole_zeros = has_whole_zeros(weight)
    is_integer = kind.startswith("int") and scaling in ("none", "after")
    is_integer = is_integer and panel >= MIN_INTEGER_PANEL
    if weight.zeros is not None:
        is_integer = is_integer and kind != "int8" and is_whole_zeros
    outer = weight.outer
    if scaling == "none" and weight.scales is not None:
        own = weight.scales.float().flatten()
        own = own if weight.steps is None else own * weight.steps.float().flatten()
        outer = own if outer is None else own * outer
    is_scaled = scaling != "none"
    values, highs = panels(weight, kind, panel)
    pairs = paired(weight) if is_scaled else None
    return GpuPacked(
        format=weight.format,
        kind=kind,
        activations=activations,
        scaling=scaling,
        is_gated=is_gated,
        is_integer=is_integer,
        has_whole_zeros=is_whole_zeros,
        in_size=weight.shape[1],
        stored=weight.shape[0],
        panel=panel,
        group=weight.shape[1] + -weight.shape[1] % 256 if is_whole else weight.group,
        run=weight.run // weight.group if is_scaled and weight.steps is not None else 1,
        center=0 if has_shift else usual_zero(weight.format),
        num_experts=1,
        values=values,
        highs=highs,
        is_paired=pairs is not None,
        scales=turned(weight.scales if pairs is None else pairs) if is_scaled else None,
        zeros=turned(weight.zeros),
        offsets=turned(weight.offsets) if pairs is None else None,
        steps=turned(weight.steps) if is_scaled else None,
        offset_steps=turned(weight.offset_steps),
        outer=outer,
        table=None if weight.table is None else weight.table.float().contiguous(),
    )


def prepare(arguments: Arguments) -> Arguments:
    """Return a case's arguments with the weight packed, once for many calls."""
    packed = pack(
        arguments["weight"],
        device=arguments["x"].device,
        is_gated=arguments.get("is_gated", False),
        dtype=arguments["x"].dtype,
    )
    return {**arguments, "weight": packed}


def _picked(scales: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    """Return the scales of some outputs. Shapes: [groups, N] -> [M, groups]"""
    if scales is None:
        return None
    if scales.dtype != torch.float8_e4m3fn:
        return scales[:, index].t()
    return scales.view(torch.uint8)[:, index].t().contiguous().view(scales.dtype)


def _has_rows(bias: torch.Tensor | None) -> bool:
    """Return whether each row has a separate bias."""
    return bias is not None and bias.dim() == 2


def _bytes(scales: torch.Tensor | None) -> torch.Tensor | None:
    """Return e4m3 as the bytes that kernels take it for."""
    is_float8 = scales is not None and scales.dtype == torch.float8_e4m3fn
    return scales.view(torch.uint8) if is_float8 and scales is not None else scales


def _height(scales: torch.Tensor | None) -> int:
    """Return the groups that an output has."""
    return 0 if scales is None else scales.shape[-2]


@cache
def _kernels() -> Any:
    """Return the kernels' module: importing it needs Triton."""
    return import_module("dovetail_kernels.gemm.triton")
