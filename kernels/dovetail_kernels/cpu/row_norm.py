"""RowNorm: what native norms of rows share. It holds the argument struct ready.

One RowNorm serves one thread at a time.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import torch

from dovetail_kernels.cpu.implementation import call_layer, native_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.cpu.row_stride import row_stride
from dovetail_kernels.op import Arguments, Implementation

_pointer, _int64, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
SIZES: list[Any] = [
    ("x_stride", _int64),
    ("delta_stride", _int64),
    ("rows", _int64),
    ("size", _int64),
    ("eps", _float),
    ("offset", _float),
]
"""The fields that end the struct of each norm."""


class RowNorm:
    """The norm of rows of `size` features; weight plus offset scales them."""

    kernel: ClassVar[str]
    args: ClassVar[type[ctypes.Structure]]

    def __init__(
        self, size: int, *, eps: float, offset: float = 0.0, source: Library | None = None
    ) -> None:
        native = source or needed_library()
        self.size = size
        self._kernel = native.kernel(self.kernel, self.args)
        self._args = self.args(size=size, eps=eps, offset=offset)
        self._reference = ctypes.byref(self._args)

    def _run(
        self, x: torch.Tensor, weight: torch.Tensor | None, delta: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the norm of x; the kernel's own arguments are set. Mutates: x, with a delta"""
        out = torch.empty(x.shape, dtype=x.dtype)  # contiguous, even if rows are strided
        args = self._args
        args.x, args.x_stride, args.rows = x.data_ptr(), row_stride(x), x.shape[0]
        args.out = out.data_ptr()
        args.weight = None if weight is None else weight.data_ptr()
        if delta is None:
            args.delta = None
        else:
            args.delta, args.delta_stride = delta.data_ptr(), row_stride(delta)
        self._kernel(self._reference)
        return out


def norm_implementation(norm: type[RowNorm]) -> Implementation:
    """Return an op's implementation by a norm made once for many calls."""

    def prepare(arguments: Arguments) -> Arguments:
        rest = dict(arguments)
        size, eps, offset = arguments["x"].shape[1], rest.pop("eps"), rest.pop("offset", 0.0)
        return {**rest, "layer": norm(size, eps=eps, offset=offset)}

    return native_implementation(call_layer, prepare=prepare)
