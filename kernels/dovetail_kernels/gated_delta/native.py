"""gated_delta on the native CPU library. A GatedDelta holds its argument struct ready.

One GatedDelta serves one thread at a time. Everything that a step changes is read from tensors when
the kernel runs, so recorded calls (cpu/program.py) see changes made in place.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import recurrent_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.states import CODES, StateRows, StateRowsArgs

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class GatedDeltaArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("q", _pointer),
        ("k", _pointer),
        ("v", _pointer),
        ("decay", _pointer),
        ("beta", _pointer),
        ("a_log", _pointer),
        ("dt_bias", _pointer),
        ("out", _pointer),
        ("state", _pointer),
        ("rows", StateRowsArgs),
        ("q_stride", _int64),
        ("k_stride", _int64),
        ("v_stride", _int64),
        ("decay_stride", _int64),
        ("beta_stride", _int64),
        ("state_stride", _int64),
        ("num_heads", _int64),
        ("num_key_heads", _int64),
        ("key_size", _int64),
        ("value_size", _int64),
        ("scale", _float),
        ("beta_scale", _float),
        ("least_log", _float),
        ("format", _int32),
        ("decays_by_channel", _int32),
    ]


class GatedDelta:
    """The parameters of a layer's heads, read in place.

    Shapes: a_log [H], dt_bias [H] or (channels decay by themselves) [H, D] float32, contiguous
    """

    def __init__(
        self,
        a_log: torch.Tensor,
        dt_bias: torch.Tensor,
        scale: float,
        beta_scale: float = 1.0,
        least_log: float = 0.0,
        *,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        self._kept = a_log, dt_bias
        assert all(t.dtype == torch.float32 and t.is_contiguous() for t in self._kept), "not [H]"
        assert len(a_log) == len(dt_bias), "numbers of each head"
        self._kernel = native.kernel("gated_delta", GatedDeltaArgs)
        self._args = GatedDeltaArgs(
            a_log=a_log.data_ptr(),
            dt_bias=dt_bias.data_ptr(),
            scale=scale,
            beta_scale=beta_scale,
            least_log=least_log,
            num_heads=len(a_log),
            decays_by_channel=int(dt_bias.dim() == 2),
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        decay_in: torch.Tensor,
        beta_in: torch.Tensor,
        state: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """Return out = q S (see the op). Tokens may be strided, heads are contiguous.

        Shapes: q and k [T, K, D], v [T, H, V], decay_in like dt_bias for each token, beta_in
        [T, H], all float32, state [N, H, D, V] of a dtype in states.FORMATS -> [T, H, V] float32
        Mutates: state
        Raises: MemoryError if there is no memory for the columns of a head
        """
        args, out = self._args, torch.empty(v.shape)
        args.q, args.q_stride, args.out = q.data_ptr(), q.stride(0), out.data_ptr()
        args.k, args.k_stride = k.data_ptr(), k.stride(0)
        args.v, args.v_stride = v.data_ptr(), v.stride(0)
        args.decay, args.decay_stride = decay_in.data_ptr(), decay_in.stride(0)
        args.beta, args.beta_stride = beta_in.data_ptr(), beta_in.stride(0)
        args.num_key_heads, args.key_size = k.shape[1:]
        args.value_size = v.shape[2]
        args.state, args.state_stride = state.data_ptr(), state.stride(0)
        args.format, args.rows = CODES[state.dtype], rows.args
        if self._kernel(self._reference):
            raise MemoryError(f"no memory for the states of {len(v)} tokens")
        return out


NATIVE = recurrent_implementation(
    GatedDelta, ("a_log", "dt_bias", "scale", "beta_scale", "least_log")
)
