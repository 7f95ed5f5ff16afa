"""layer_norm on the native CPU library. A LayerNorm holds its argument struct ready.

One LayerNorm serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.cpu.row_stride import row_stride
from dovetail_kernels.op import Arguments, Implementation

_pointer, _int64, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class LayerNormArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("delta", _pointer),
        ("weight", _pointer),
        ("bias", _pointer),
        ("out", _pointer),
        ("x_stride", _int64),
        ("delta_stride", _int64),
        ("rows", _int64),
        ("size", _int64),
        ("eps", _float),
        ("offset", _float),
    ]


class LayerNorm:
    """The norm of rows of `size` features; weight plus offset scales them."""

    def __init__(
        self, size: int, *, eps: float, offset: float = 0.0, source: Library | None = None
    ) -> None:
        native = source or library()
        if native is None:
            raise OSError(missing_reason())
        self.size = size
        self._kernel = native.kernel("layer_norm", LayerNormArgs)
        self._args = LayerNormArgs(size=size, eps=eps, offset=offset)
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the norm of x. Shapes: x and delta [T, E], weight and bias [E] -> [T, E]

        Rows of x and delta may be strided; weight and bias are contiguous. All float32.
        Mutates: x, when there is a delta.
        """
        out = torch.empty(x.shape, dtype=x.dtype)  # contiguous, even if rows are strided
        args = self._args
        args.x, args.x_stride, args.rows = x.data_ptr(), row_stride(x), x.shape[0]
        args.out = out.data_ptr()
        args.weight = None if weight is None else weight.data_ptr()
        args.bias = None if bias is None else bias.data_ptr()
        if delta is None:
            args.delta = None
        else:
            args.delta, args.delta_stride = delta.data_ptr(), row_stride(delta)
        self._kernel(self._reference)
        return out


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the norm made once for many calls."""
    rest = dict(arguments)
    size, offset = arguments["x"].shape[1], rest.pop("offset", 0.0)
    norm = LayerNorm(size, eps=rest.pop("eps"), offset=offset)
    return {**rest, "norm": norm}


def _normalise(
    norm: LayerNorm,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    delta: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the norm of x (see LayerNorm)."""
    return norm(x, weight, bias, delta)


NATIVE = Implementation(
    name="native",
    function=_normalise,
    devices=("cpu",),
    dtypes=(torch.float32,),
    rank=10,
    unavailable_reason=missing_reason,
    prepare=_prepare,
)
