"""gated_norm on the native CPU library. A GatedNorm holds its argument struct ready.

One GatedNorm serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_float = ctypes.c_float


class GatedNormArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("gate", _pointer),
        ("weight", _pointer),
        ("out", _pointer),
        ("x_stride", _int64),
        ("gate_stride", _int64),
        ("weight_stride", _int64),
        ("rows", _int64),
        ("groups", _int64),
        ("group_size", _int64),
        ("eps", _float),
        ("gate_first", _int32),
    ]


class GatedNorm:
    """The norm of groups of `group_size` numbers, gated before it or after it."""

    def __init__(
        self, group_size: int, *, eps: float, gate_first: bool, source: Library | None = None
    ) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("gated_norm", GatedNormArgs)
        self._args = GatedNormArgs(group_size=group_size, eps=eps, gate_first=gate_first)
        self._reference = ctypes.byref(self._args)

    def __call__(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the gated norm. Shapes: x, gate [T, D], weight [D] or [group_size] -> [T, D]

        Rows of x and gate may be strided; the weight is contiguous. All float32.
        """
        (rows, size), args = x.shape, self._args
        out = torch.empty((rows, size))
        args.x, args.x_stride, args.rows = x.data_ptr(), x.stride(0), rows
        args.gate, args.gate_stride = gate.data_ptr(), gate.stride(0)
        args.groups, args.out = size // args.group_size, out.data_ptr()
        args.weight = weight.data_ptr()
        args.weight_stride = args.group_size if len(weight) == size else 0
        self._kernel(self._reference)
        return out


NATIVE = layer_implementation(GatedNorm, ("group_size", "eps", "gate_first"))
