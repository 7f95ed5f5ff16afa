"""rms_norm on the native CPU library. An RmsNorm holds its argument struct ready.

One RmsNorm serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.row_norm import SIZES, RowNorm, norm_implementation

_pointer = ctypes.c_void_p


class RmsNormArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("delta", _pointer),
        ("residual", _pointer),
        ("weight", _pointer),
        ("out", _pointer),
        *SIZES,
    ]


class RmsNorm(RowNorm):
    """The norm of rows of `size` features; weight plus offset scales them."""

    kernel, args = "rms_norm", RmsNormArgs

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
        self._args.residual = None if residual is None else residual.data_ptr()
        return self._run(x, weight, delta)


NATIVE = norm_implementation(RmsNorm)
