"""ssd on the native CPU library. An Ssd holds its argument struct ready.

One Ssd serves one thread at a time. Everything that a step changes is read from tensors when the
kernel runs, so recorded calls (cpu/program.py) see changes made in place.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import recurrent_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.states import CODES, StateRows, StateRowsArgs

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
NO_LIMIT = (0.0, float("inf"))


class SsdArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("dt", _pointer),
        ("b", _pointer),
        ("c", _pointer),
        ("a", _pointer),
        ("d", _pointer),
        ("dt_bias", _pointer),
        ("out", _pointer),
        ("state", _pointer),
        ("rows", StateRowsArgs),
        ("x_stride", _int64),
        ("dt_stride", _int64),
        ("b_stride", _int64),
        ("c_stride", _int64),
        ("state_stride", _int64),
        ("num_heads", _int64),
        ("num_groups", _int64),
        ("head_size", _int64),
        ("state_size", _int64),
        ("low", _float),
        ("high", _float),
        ("format", _int32),
        ("reserved", _int32),
    ]


class Ssd:
    """The parameters of a layer's heads, read in place.

    Shapes: a, d, dt_bias [H] float32, contiguous
    """

    def __init__(
        self,
        a: torch.Tensor,
        d: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        dt_limit: tuple[float, float] = NO_LIMIT,
        *,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        given = [t for t in (a, d, dt_bias) if t is not None]
        assert all(t.dtype == torch.float32 and t.is_contiguous() for t in given), "not float32 [H]"
        assert all(t.shape == a.shape for t in given), "one number a head"
        self._kept = given
        self._kernel = native.kernel("ssd", SsdArgs)
        self._args = SsdArgs(
            a=a.data_ptr(),
            d=None if d is None else d.data_ptr(),
            dt_bias=None if dt_bias is None else dt_bias.data_ptr(),
            low=dt_limit[0],
            high=dt_limit[1],
            num_heads=len(a),
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        dt: torch.Tensor | None,
        b: torch.Tensor,
        c: torch.Tensor,
        state: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """Return out = h c + d x (see the op). Tokens may be strided, heads and groups may not.

        Shapes: x [T, H, P], dt [T, H], b and c [T, G, S], all float32, state [N, H, P, S] of a
        dtype in states.FORMATS -> [T, H, P] float32
        Mutates: state
        """
        args, out = self._args, torch.empty(x.shape)
        args.x, args.x_stride, args.out = x.data_ptr(), x.stride(0), out.data_ptr()
        args.dt, args.dt_stride = (None, 0) if dt is None else (dt.data_ptr(), dt.stride(0))
        args.b, args.b_stride = b.data_ptr(), b.stride(0)
        args.c, args.c_stride = c.data_ptr(), c.stride(0)
        args.num_groups, args.state_size = b.shape[1:]
        args.head_size = x.shape[2]
        args.state, args.state_stride = state.data_ptr(), state.stride(0)
        args.format, args.rows = CODES[state.dtype], rows.args
        self._kernel(self._reference)
        return out


NATIVE = recurrent_implementation(Ssd, ("a", "d", "dt_bias", "dt_limit"))
