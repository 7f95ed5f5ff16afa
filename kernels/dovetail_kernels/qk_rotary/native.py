"""qk_rotary on the native CPU library. A QkRotary holds its argument struct ready.

One QkRotary serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import call_layer, native_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.op import Arguments

_pointer, _int64, _float, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class QkRotaryArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("qkv", _pointer),
        ("cos", _pointer),
        ("sin", _pointer),
        ("positions", _pointer),
        ("q_weight", _pointer),
        ("k_weight", _pointer),
        ("qkv_stride", _int64),
        ("rows", _int64),
        ("num_heads", _int64),
        ("num_kv_heads", _int64),
        ("head_size", _int64),
        ("half", _int64),
        ("eps", _float),
        ("offset", _float),
        ("is_interleaved", _int32),
        ("reserved", _int32),
    ]


class QkRotary:
    """Norm and turn of the q and k heads of one layer."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        *,
        eps: float = 1e-6,
        offset: float = 0.0,
        is_interleaved: bool = False,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("qk_rotary", QkRotaryArgs)
        self._args = QkRotaryArgs(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            eps=eps,
            offset=offset,
            is_interleaved=int(is_interleaved),
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        q_weight: torch.Tensor | None = None,
        k_weight: torch.Tensor | None = None,
    ) -> None:
        """Norm (if there is a weight) and rotate. Shapes: see the op. Mutates: qkv

        Rows of qkv may be strided, all else is contiguous. All float32, positions int64; every
        position must be within the table.
        """
        args = self._args
        args.qkv, args.qkv_stride, args.rows = qkv.data_ptr(), qkv.stride(0), qkv.shape[0]
        args.cos, args.sin, args.half = cos.data_ptr(), sin.data_ptr(), cos.shape[1]
        args.positions = positions.data_ptr()
        args.q_weight = None if q_weight is None else q_weight.data_ptr()
        args.k_weight = None if k_weight is None else k_weight.data_ptr()
        self._kernel(self._reference)


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the turn made once for many calls."""
    rest = dict(arguments)
    heads, kv_heads = rest.pop("num_heads"), rest.pop("num_kv_heads")
    turn = QkRotary(
        heads,
        kv_heads,
        arguments["qkv"].shape[1] // (heads + 2 * kv_heads),
        eps=rest.pop("eps", 1e-6),
        offset=rest.pop("offset", 0.0),
        is_interleaved=rest.pop("is_interleaved", False),
    )
    return {**rest, "layer": turn}


NATIVE = native_implementation(call_layer, prepare=_prepare)
