"""gated_activation on the native CPU library. A Gate holds its argument struct ready.

One Gate serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.gemm.native import CODES

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class GateArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("out", _pointer),
        ("x_stride", _int64),
        ("rows", _int64),
        ("size", _int64),
        ("activation", _int32),
        ("reserved", _int32),
    ]


class Gate:
    """One activation, for gates of any size."""

    def __init__(self, activation: str = "silu", *, source: Library | None = None) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("gated_activation", GateArgs)
        self._args = GateArgs(activation=CODES[activation])
        self._reference = ctypes.byref(self._args)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return act(gate) * up. Shapes: x [T, 2 F] float32, rows may be strided -> [T, F]"""
        rows, size = x.shape[0], x.shape[1] // 2
        out = torch.empty((rows, size))
        args = self._args
        args.x, args.x_stride, args.rows, args.size = x.data_ptr(), x.stride(0), rows, size
        args.out = out.data_ptr()
        self._kernel(self._reference)
        return out


NATIVE = layer_implementation(Gate, ("activation",))
