"""wkv on the native CPU library. A Wkv holds its argument struct ready.

One Wkv serves one thread at a time. Weights, states and rows are read when the kernel runs, so what
is recorded (cpu/program.py) follows them when they change in place.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import recurrent_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.states import CODES, StateRows, StateRowsArgs

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class WkvArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        *((name, _pointer) for name in ("k", "v", "r", "decay", "first", "out", "state")),
        ("rows", StateRowsArgs),
        *((f"{name}_stride", _int64) for name in ("k", "v", "r", "state")),
        ("channels", _int64),
        ("format", _int32),
        ("reserved", _int32),
    ]


class Wkv:
    """The averages of one layer; its weights are read in place: contiguous float32.

    Shapes: decay, first [C]
    """

    def __init__(
        self, decay: torch.Tensor, first: torch.Tensor, *, source: Library | None = None
    ) -> None:
        native = source or needed_library()
        weights = (decay, first)
        assert all(w.dtype == torch.float32 and w.is_contiguous() for w in weights), "weights"
        self._kept = weights
        self._kernel = native.kernel("wkv", WkvArgs)
        self._args = WkvArgs(
            decay=decay.data_ptr(), first=first.data_ptr(), channels=decay.shape[0]
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        r: torch.Tensor,
        state: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """Return the gated averages (see the op).

        Rows of k, v and r, and blocks of the state, may be strided. Everything except the state is
        float32. Shapes: k, v, r [T, C], state [N, 3, C] -> [T, C]. Mutates: state
        """
        out, args = torch.empty(k.shape), self._args
        args.k, args.k_stride, args.out = k.data_ptr(), k.stride(0), out.data_ptr()
        args.v, args.v_stride = v.data_ptr(), v.stride(0)
        args.r, args.r_stride = r.data_ptr(), r.stride(0)
        args.state, args.state_stride = state.data_ptr(), state.stride(0)
        args.format, args.rows = CODES[state.dtype], rows.args
        code = self._kernel(self._reference)
        assert not code, f"wkv does not take states of {state.dtype}"
        return out


NATIVE = recurrent_implementation(Wkv, ("decay", "first"))
