"""output_gate on the native CPU library. An OutputGate holds its argument struct ready.

One OutputGate serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64


class OutputGateArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("gate", _pointer),
        ("out", _pointer),
        ("x_stride", _int64),
        ("gate_stride", _int64),
        ("rows", _int64),
        ("size", _int64),
    ]


class OutputGate:
    """Gates of any size."""

    def __init__(self, *, source: Library | None = None) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("output_gate", OutputGateArgs)
        self._args = OutputGateArgs()
        self._reference = ctypes.byref(self._args)

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return x sigmoid(gate). Shapes: x, gate [T, D] float32, rows may be strided -> [T, D]"""
        (rows, size), args = x.shape, self._args
        out = torch.empty((rows, size))
        args.x, args.x_stride, args.rows, args.size = x.data_ptr(), x.stride(0), rows, size
        args.gate, args.gate_stride = gate.data_ptr(), gate.stride(0)
        args.out = out.data_ptr()
        self._kernel(self._reference)
        return out


NATIVE = layer_implementation(OutputGate)
