"""low_rank on the native CPU library. A LowRank holds its argument struct ready.

One LowRank serves one thread at a time. Slots, ranks and weights are read when the kernel runs, so
recorded calls (cpu/program.py) see changes made in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.gemm.weight import FORMATS
from dovetail_kernels.op import Arguments

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
CODES = {
    dtype: FORMATS.index(str(dtype).removeprefix("torch."))
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
}


class LowRankArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("out", _pointer),
        ("slots", _pointer),
        ("ranks", _pointer),
        ("down", _pointer),
        ("up", _pointer),
        ("base", _pointer),
        ("ends", _pointer),
        ("x_stride", _int64),
        ("base_stride", _int64),
        ("rows", _int64),
        ("in_size", _int64),
        ("out_size", _int64),
        ("num_slots", _int64),
        ("num_parts", _int64),
        ("rank", _int64),
        ("format", _int32),
        ("reserved", _int32),
    ]


class LowRank:
    """The matrices of some slots, read in place: contiguous, both of one dtype.

    Shapes: down [S, P, R, I], up [S, R, O], ranks [S] int32; parts P sizes whose sum is O
    """

    def __init__(
        self,
        down: torch.Tensor,
        up: torch.Tensor,
        ranks: torch.Tensor,
        parts: Sequence[int],
        *,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        slots, num_parts, rank, inputs = down.shape
        assert up.shape == (slots, rank, sum(parts)), f"up is {tuple(up.shape)}"
        assert len(parts) == num_parts, f"{len(parts)} sizes for {num_parts} parts"
        assert down.dtype == up.dtype, f"down is {down.dtype}, up {up.dtype}"
        assert ranks.dtype == torch.int32 and ranks.shape == (slots,), "ranks are int32 [S]"
        assert all(t.is_contiguous() for t in (down, up, ranks)), "weights have gaps"
        self.out_size = sum(parts)
        self._kept = down, up, ranks
        self._kernel = native.kernel("low_rank", LowRankArgs)
        self._args = LowRankArgs(
            down=down.data_ptr(),
            up=up.data_ptr(),
            ranks=ranks.data_ptr(),
            ends=ctypes.addressof(_ends(tuple(parts))),
            in_size=inputs,
            out_size=self.out_size,
            num_slots=slots,
            num_parts=num_parts,
            rank=rank,
            format=CODES[down.dtype],
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self, x: torch.Tensor, slots: torch.Tensor, base: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return base + up^T (down x) by each row's slot.

        Rows of x and base may be strided; slots are contiguous int32.
        Shapes: x [T, I] float32, slots [T] (-1: none), base [O] or [T, O] float32 -> [T, O]
        Raises: MemoryError when there is none for the thin product
        """
        rows, args = x.shape[0], self._args
        out = torch.empty((rows, self.out_size))
        args.x, args.x_stride, args.rows = x.data_ptr(), x.stride(0), rows
        args.slots, args.out = slots.data_ptr(), out.data_ptr()
        args.base = None if base is None else base.data_ptr()
        args.base_stride = 0 if base is None or base.dim() == 1 else base.stride(0)
        if self._kernel(self._reference):
            raise MemoryError(f"no memory for {rows} rows of adapters")
        return out


@cache
def _ends(parts: tuple[int, ...]) -> Any:
    """Return the ends of parts in permanent memory: recorded calls point to it."""
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    return (_int64 * len(parts))(*ends)


def _why_not(arguments: Arguments) -> str | None:
    """Return why these arguments are not for the native kernel, or None."""
    down, up = arguments["down"], arguments["up"]
    if down.dtype not in CODES or up.dtype != down.dtype:
        return f"it does not take weights of {down.dtype} and {up.dtype}"
    return None


NATIVE = layer_implementation(LowRank, ("down", "up", "ranks", "parts"), why_not=_why_not)
