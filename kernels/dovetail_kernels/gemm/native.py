"""gemm on the native CPU library: weights packed once, then one call a product.

A Packed holds its argument struct ready, so that a call sets a few numbers and goes. Knows no layer.
"""

from __future__ import annotations

import ctypes
import torch

from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.gemm.weight import FORMATS, Weight
from dovetail_kernels.op import Arguments, Implementation

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")
ALIGNMENT_BYTES = 2 << 20
"""Packed weights start on a large page, so that the system can back them with large pages."""
MIN_ALIGNED_BYTES = 4 << 20
CODES = {name: code for code, name in enumerate(ACTIVATIONS)}

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class GemmArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("out", _pointer),
        ("weight", _pointer),
        ("scales", _pointer),
        ("zeros", _pointer),
        ("bias", _pointer),
        ("residual", _pointer),
        ("x_stride", _int64),
        ("out_stride", _int64),
        ("rows", _int64),
        ("in_size", _int64),
        ("out_size", _int64),
        ("group", _int64),
        ("format", _int32),
        ("activation", _int32),
        ("is_gated", _int32),
        ("reserved", _int32),
    ]


class PackArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("weight", _pointer),
        ("packed", _pointer),
        ("in_size", _int64),
        ("out_size", _int64),
        ("packed_bytes", _int64),
        ("format", _int32),
        ("is_gated", _int32),
    ]


class Packed:
    """A weight in the layout that this machine's products read, ready to be multiplied.

    The weight's own tensors are not kept. `is_gated`: the first half of the outputs is the gate.
    """

    def __init__(
        self, weight: Weight, *, is_gated: bool = False, source: Library | None = None
    ) -> None:
        native = source or library()
        if native is None:
            raise OSError(missing_reason())
        outputs, inputs = weight.shape
        self.format, self.is_gated = weight.format, is_gated
        self.in_size, self.out_size = inputs, outputs // 2 if is_gated else outputs
        self.data, rows = _pack(native, weight, is_gated)
        self.scales = _spread(weight.scales, rows)
        has_zeros = weight.zeros is not None and weight.scales is not None
        self.zeros = _spread(weight.zeros * weight.scales, rows) if has_zeros else None
        name = "gemm_int8" if weight.format in ("int8", "int4_int8") else "gemm_float"
        self._kernel = native.kernel(name, GemmArgs)
        self._args = GemmArgs(
            weight=self.data.data_ptr(),
            scales=None if self.scales is None else self.scales.data_ptr(),
            zeros=None if self.zeros is None else self.zeros.data_ptr(),
            in_size=inputs,
            out_size=outputs,
            group=weight.group,
            format=FORMATS.index(weight.format),
            is_gated=int(is_gated),
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        activation: str = "none",
    ) -> torch.Tensor:
        """Return act(x W^T + bias) + residual. Shapes: x [M, K], residual [M, N] -> [M, N]

        x may be a slice whose rows lie apart; residual must be contiguous. All float32.
        """
        rows = x.shape[0]
        out = torch.empty((rows, self.out_size))
        args = self._args
        args.x, args.x_stride, args.rows = x.data_ptr(), x.stride(0), rows
        args.out, args.out_stride = out.data_ptr(), self.out_size
        args.bias = None if bias is None else bias.data_ptr()
        args.residual = None if residual is None else residual.data_ptr()
        args.activation = CODES[activation]
        if self._kernel(self._reference):
            raise MemoryError(f"no memory for {rows} rows of {self.in_size}")
        return out

    @property
    def num_bytes(self) -> int:
        """Return the bytes that this weight takes."""
        return sum(t.nbytes for t in (self.data, self.scales, self.zeros) if t is not None)


def _pack(native: Library, weight: Weight, is_gated: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed bytes, and for every column of every panel its output or -1."""
    outputs, inputs = weight.shape
    values = weight.values.contiguous()
    args = PackArgs(
        weight=values.data_ptr(),
        in_size=inputs,
        out_size=outputs,
        format=FORMATS.index(weight.format),
        is_gated=int(is_gated),
    )
    reference = ctypes.byref(args)
    columns = native.kernel("gemm_panel_columns", PackArgs)(reference)
    rows = _panel_rows(outputs, columns, is_gated)
    num_bytes = len(rows) * native.kernel("gemm_panel_bytes", PackArgs)(reference)
    packed = _aligned(num_bytes)
    args.packed, args.packed_bytes = packed.data_ptr(), num_bytes
    if native.kernel("gemm_pack", PackArgs)(reference):
        raise AssertionError(f"{num_bytes} bytes are not what {outputs} x {inputs} take")
    return packed, rows


def _panel_rows(outputs: int, columns: int, is_gated: bool) -> torch.Tensor:
    """Return which output each panel column holds. Shapes: [panels, columns] int64, -1 is padding"""
    half = columns // 2
    if not is_gated:
        panels = -(-outputs // columns)
        rows = torch.arange(panels * columns).view(panels, columns)
        return rows.masked_fill(rows >= outputs, -1)
    size = outputs // 2
    panels = -(-size // half)
    gate = torch.arange(panels * half).view(panels, half)
    up = (gate + size).masked_fill(gate >= size, -1)
    return torch.cat([gate.masked_fill(gate >= size, -1), up], dim=1)


def _aligned(num_bytes: int) -> torch.Tensor:
    """Return memory that starts on a large page when it is large, on a cache line otherwise."""
    alignment = ALIGNMENT_BYTES if num_bytes >= MIN_ALIGNED_BYTES else 64
    memory = torch.empty(num_bytes + alignment, dtype=torch.uint8)
    start = -memory.data_ptr() % alignment
    return memory[start : start + num_bytes]


def _spread(scales: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    """Return scales in the order of the panels. Shapes: [N] -> [panels, columns],
    [N, groups] -> [panels, groups, columns]; padding is 0"""
    if scales is None:
        return None
    padded = torch.cat([scales.float(), torch.zeros_like(scales[:1], dtype=torch.float32)])
    spread = padded[rows]
    return (spread.transpose(1, 2) if spread.dim() == 3 else spread).contiguous()


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


NATIVE = Implementation(
    name="native",
    function=_multiply,
    devices=("cpu",),
    dtypes=(torch.float32,),
    rank=10,
    unavailable_reason=missing_reason,
    prepare=_prepare,
)
