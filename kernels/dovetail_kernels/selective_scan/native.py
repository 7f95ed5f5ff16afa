"""selective_scan on the native CPU library. A SelectiveScan holds its argument struct ready.

One SelectiveScan serves one thread at a time. Weights, states and rows are read when the kernel
runs, so recorded calls (cpu/program.py) see changes made in place.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import recurrent_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.states import CODES, StateRows, StateRowsArgs

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class SelectiveScanArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        *((name, _pointer) for name in ("x", "dt", "z", "b", "c", "a", "d", "dt_bias")),
        ("out", _pointer),
        ("state", _pointer),
        ("rows", StateRowsArgs),
        *((f"{name}_stride", _int64) for name in ("x", "dt", "z", "b", "c", "state")),
        ("channels", _int64),
        ("state_size", _int64),
        ("format", _int32),
        ("reserved", _int32),
    ]


class SelectiveScan:
    """The recurrence of one layer; its weights are read in place: contiguous float32.

    Shapes: a [D, S], d [D], dt_bias [D]
    """

    def __init__(
        self,
        a: torch.Tensor,
        d: torch.Tensor,
        dt_bias: torch.Tensor | None,
        *,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        weights = [w for w in (a, d, dt_bias) if w is not None]
        assert all(w.dtype == torch.float32 and w.is_contiguous() for w in weights), "weights"
        self._kept = weights
        self._kernel = native.kernel("selective_scan", SelectiveScanArgs)
        self._args = SelectiveScanArgs(
            a=a.data_ptr(),
            d=d.data_ptr(),
            dt_bias=None if dt_bias is None else dt_bias.data_ptr(),
            channels=a.shape[0],
            state_size=a.shape[1],
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        dt: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        z: torch.Tensor | None,
        state: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """Return (c . h + d x) silu(z) (see the op).

        Rows of x, dt, b, c and z, and blocks of the state, may be strided. Everything except the
        state is float32.
        Shapes: x, dt, z [T, D], b, c [T, S], state [N, D, S] -> [T, D]. Mutates: state
        """
        out, args = torch.empty(x.shape), self._args
        args.x, args.x_stride, args.out = x.data_ptr(), x.stride(0), out.data_ptr()
        args.dt, args.dt_stride = dt.data_ptr(), dt.stride(0)
        args.b, args.b_stride = b.data_ptr(), b.stride(0)
        args.c, args.c_stride = c.data_ptr(), c.stride(0)
        args.z = None if z is None else z.data_ptr()
        args.z_stride = 0 if z is None else z.stride(0)
        args.state, args.state_stride = state.data_ptr(), state.stride(0)
        args.format, args.rows = CODES[state.dtype], rows.args
        code = self._kernel(self._reference)
        assert not code, f"selective_scan does not take states of {state.dtype}"
        return out


NATIVE = recurrent_implementation(SelectiveScan, ("a", "d", "dt_bias"))
