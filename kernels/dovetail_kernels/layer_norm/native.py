"""layer_norm on the native CPU library. A LayerNorm holds its argument struct ready.

One LayerNorm serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.row_norm import SIZES, RowNorm, norm_implementation

_pointer = ctypes.c_void_p


class LayerNormArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("delta", _pointer),
        ("weight", _pointer),
        ("bias", _pointer),
        ("out", _pointer),
        *SIZES,
    ]


class LayerNorm(RowNorm):
    """The norm of rows of `size` features; weight plus offset scales them."""

    kernel, args = "layer_norm", LayerNormArgs

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
        self._args.bias = None if bias is None else bias.data_ptr()
        return self._run(x, weight, delta)


NATIVE = norm_implementation(LayerNorm)
