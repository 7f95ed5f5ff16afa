"""rms_norm on the native CPU library. An RmsNorm holds its argument struct ready.

One RmsNorm serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.cpu.row_stride import row_stride
from dovetail_kernels.op import Arguments, Implementation

_pointer, _int64, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class RmsNormArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("delta", _pointer),
        ("residual", _pointer),
        ("weight", _pointer),
        ("out", _pointer),
        ("x_stride", _int64),
        ("delta_stride", _int64),
        ("rows", _int64),
        ("size", _int64),
        ("eps", _float),
        ("offset", _float),
    ]


class RmsNorm:
    """The norm of rows of `size` features; weight plus offset scales them."""

    def __init__(
        self, size: int, *, eps: float, offset: float = 0.0, source: Library | None = None
    ) -> None:
        native = source or library()
        if native is None:
            raise OSError(missing_reason())
        self.size = size
        self._kernel = native.kernel("rms_norm", RmsNormArgs)
        self._args = RmsNormArgs(size=size, eps=eps, offset=offset)
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        delta: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the norm of x (+ residual). Shapes: x, delta, residual [T, E] -> [T, E]

        Rows of x and delta may be strided; residual and weight are contiguous. All float32.
        Mutates: x, when there is a delta.
        """
        rows = x.shape[0]
        out = torch.empty(x.shape, dtype=x.dtype)  # contiguous, even if rows are strided
        args = self._args
        args.x, args.x_stride, args.rows = x.data_ptr(), row_stride(x), rows
        args.out = out.data_ptr()
        args.weight = None if weight is None else weight.data_ptr()
        args.residual = None if residual is None else residual.data_ptr()
        if delta is None:
            args.delta = None
        else:
            args.delta, args.delta_stride = delta.data_ptr(), row_stride(delta)
        self._kernel(self._reference)
        return out


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the norm made once for many calls."""
    rest = dict(arguments)
    norm = RmsNorm(arguments["x"].shape[1], eps=rest.pop("eps"), offset=rest.pop("offset", 0.0))
    return {**rest, "norm": norm}


def _normalise(
    norm: RmsNorm,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    delta: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the norm of x (see RmsNorm)."""
    return norm(x, weight, delta, residual)


NATIVE = Implementation(
    name="native",
    function=_normalise,
    devices=("cpu",),
    dtypes=(torch.float32,),
    rank=10,
    unavailable_reason=missing_reason,
    prepare=_prepare,
)
