"""short_conv on the native CPU library. A ShortConv holds its argument struct ready.

One ShortConv serves one thread at a time. Weights, states and rows are read when the kernel runs,
so recorded calls (cpu/program.py) see changes made in place.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import recurrent_implementation, why_not_states
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.gemm.native import CODES as ACTIVATIONS
from dovetail_kernels.op import Arguments
from dovetail_kernels.states import CODES, StateRows, StateRowsArgs

MAX_WIDTH = 8
_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class ShortConvArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("weight", _pointer),
        ("bias", _pointer),
        ("out", _pointer),
        ("state", _pointer),
        ("rows", StateRowsArgs),
        ("x_stride", _int64),
        ("state_stride", _int64),
        ("channels", _int64),
        ("width", _int32),
        ("activation", _int32),
        ("format", _int32),
        ("reserved", _int32),
    ]


class ShortConv:
    """The convolution with one activation, "none" or "silu"."""

    def __init__(self, activation: str = "none", *, source: Library | None = None) -> None:
        native = source or needed_library()
        assert activation in ("none", "silu"), f"short_conv has no activation {activation}"
        self._kernel = native.kernel("short_conv", ShortConvArgs)
        self._args = ShortConvArgs(activation=ACTIVATIONS[activation])
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        state: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """Return the convolution of the rows' inputs (see the op).

        Rows of x, and blocks of the state, may be strided. Everything except the state is float32.
        Shapes: x [T, C], weight [C, W], bias [C], state [N, C, W - 1] -> [T, C]. Mutates: state
        """
        out, args = torch.empty(x.shape), self._args
        args.x, args.x_stride, args.out = x.data_ptr(), x.stride(0), out.data_ptr()
        args.weight = weight.data_ptr()
        args.channels, args.width = weight.shape
        args.bias = None if bias is None else bias.data_ptr()
        args.state, args.state_stride = state.data_ptr(), state.stride(0)
        args.format, args.rows = CODES[state.dtype], rows.args
        code = self._kernel(self._reference)
        assert not code, f"short_conv does not take a width of {args.width}"
        return out


def _why_not(arguments: Arguments) -> str | None:
    """Return why these arguments are not for the native kernel, or None."""
    width = arguments["weight"].shape[1]
    if not 2 <= width <= MAX_WIDTH:
        return f"it takes widths from 2 to {MAX_WIDTH}, not {width}"
    if arguments["weight"].dtype != torch.float32:
        return f"it does not take a weight of {arguments['weight'].dtype}"
    return why_not_states(arguments)


NATIVE = recurrent_implementation(ShortConv, ("activation",), why_not=_why_not)
