"""head_products on the native CPU library: the matrices packed once, one call for all heads.

One HeadProducts serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
CODES = {dtype: code for code, dtype in enumerate(FORMATS)}
BY_OUTPUTS, BY_INPUTS = "outputs", "inputs"
"""What 32 numbers under one scale are: of one input, or of one output."""
SCALED_CODES = {BY_OUTPUTS: 3, BY_INPUTS: 4}
PANEL, SCALED = 64, 32
MOST, EXACT = 127.0, 2.0**-20
"""The largest code, and how far a group's numbers may differ from codes times a scale, relative to
the largest: the accumulated rounding of float32 products."""

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class HeadProductsArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("out", _pointer),
        ("weight", _pointer),
        ("x_stride", _int64),
        ("tokens", _int64),
        ("num_heads", _int64),
        ("in_size", _int64),
        ("out_size", _int64),
        ("rest", _int64),
        ("format", _int32),
        ("reserved", _int32),
    ]


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Return the matrices in panels of 64 outputs, padded with zeros.

    Shapes: [H, I, O] -> [H, O / 64, I, 64]
    """
    missing = -weight.shape[2] % PANEL
    return F.pad(weight, (0, missing)).unflatten(2, (-1, PANEL)).transpose(1, 2).contiguous()


def in_bytes(weight: torch.Tensor, groups: str) -> torch.Tensor | None:
    """Return matrices that are bytes times a scale per 32 numbers as packed bytes, with scales
    after each panel; None for other matrices.

    Shapes: [H, I, O] float32 -> [H, O / 64, 72 I] int8
    """
    axis = 2 if groups == BY_OUTPUTS else 1
    if weight.shape[axis] % SCALED or (axis == 2 and weight.shape[2] % PANEL):
        return None
    wide = weight.float().unflatten(axis, (-1, SCALED))
    largest = wide.abs().amax(axis + 1, keepdim=True)
    scales = largest / MOST
    codes = (wide / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    if bool(((codes * scales - wide).abs() > EXACT * largest).any()):
        return None
    bytes_ = packed(codes.flatten(axis, axis + 1).to(torch.int8)).flatten(2)
    scales = scales.squeeze(axis + 1)
    if axis == 2:
        behind = scales.unflatten(2, (-1, PANEL // SCALED)).transpose(1, 2).contiguous()
    else:
        behind = packed(scales)
    return torch.cat([bytes_, behind.flatten(2).contiguous().view(torch.int8)], dim=2)


class HeadProducts:
    """The matrices of all heads, packed; if they `may_be_bytes`, by `in_bytes` when possible.
    Shapes: weight [H, I, O]"""

    def __init__(
        self, weight: torch.Tensor, source: Library | None = None, *, may_be_bytes: bool = False
    ) -> None:
        native = source or needed_library()
        code, self.weight = CODES[weight.dtype], packed(weight)
        for groups, scaled_code in SCALED_CODES.items() if may_be_bytes else ():
            bytes_ = in_bytes(weight, groups)
            if bytes_ is not None:
                code, self.weight = scaled_code, bytes_
                break
        self._shape = weight.shape
        self._kernel = native.kernel("head_products", HeadProductsArgs)
        self._args = HeadProductsArgs(
            num_heads=weight.shape[0],
            in_size=weight.shape[1],
            out_size=weight.shape[2],
            format=code,
        )
        self._reference = ctypes.byref(self._args)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products. Tokens may be strided, heads are contiguous.

        Shapes: x [T, H, I + S] float32 -> [T, H, O + S]
        """
        tokens, heads, width = x.shape
        rest = width - self._shape[1]
        out = torch.empty(tokens, heads, self._shape[2] + rest)
        args = self._args
        args.weight = self.weight.data_ptr()
        args.x, args.x_stride, args.out = x.data_ptr(), x.stride(0), out.data_ptr()
        args.tokens, args.rest = tokens, rest
        self._kernel(self._reference)
        return out


NATIVE = layer_implementation(HeadProducts, ("weight",))
