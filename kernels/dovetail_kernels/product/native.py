"""product on the native CPU library. A Product holds its argument struct ready.

One Product serves one thread at a time. The factors are read when the kernel runs.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.gemm.native import CODES
from dovetail_kernels.op import Arguments

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class ProductArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("gate", _pointer),
        ("factors", _pointer),
        ("out", _pointer),
        ("x_stride", _int64),
        ("gate_stride", _int64),
        ("rows", _int64),
        ("size", _int64),
        ("activation", _int32),
        ("reserved", _int32),
    ]


class Product:
    """The product with a gate's activation, for rows of any size."""

    def __init__(self, activation: str = "none", *, source: Library | None = None) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("product", ProductArgs)
        self._args = ProductArgs(activation=CODES[activation])
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        gate: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return x * act(gate) * factors, all float32. Rows of x and gate may be strided.

        Shapes: x, gate [T, C], factors [C] -> [T, C]
        """
        out, args = torch.empty(x.shape), self._args
        args.rows, args.size = x.shape
        args.x, args.x_stride, args.out = x.data_ptr(), x.stride(0), out.data_ptr()
        args.gate = None if gate is None else gate.data_ptr()
        args.gate_stride = 0 if gate is None else gate.stride(0)
        args.factors = None if factors is None else factors.data_ptr()
        self._kernel(self._reference)
        return out


def _why_not(arguments: Arguments) -> str | None:
    """Return why these arguments are not for the native kernel, or None."""
    factors = arguments.get("factors")
    if factors is None or factors.dtype == torch.float32:
        return None
    return f"it does not take factors of {factors.dtype}"


NATIVE = layer_implementation(Product, ("activation",), why_not=_why_not)
