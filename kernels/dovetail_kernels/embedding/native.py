"""embedding on the native CPU library. A LookUp holds its argument struct ready.

One LookUp serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import call_layer, native_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.gemm.weight import FORMATS
from dovetail_kernels.op import Arguments

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
CODES = {
    dtype: FORMATS.index(str(dtype).removeprefix("torch."))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8)
}


class EmbeddingArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("table", _pointer),
        ("scales", _pointer),
        ("ids", _pointer),
        ("onto", _pointer),
        ("out", _pointer),
        ("rows", _int64),
        ("size", _int64),
        ("first", _int64),
        ("table_rows", _int64),
        ("factor", ctypes.c_float),
        ("format", ctypes.c_int32),
    ]


class LookUp:
    """Rows of a table of one dtype; `first` is the id of its first row."""

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        first: int = 0,
        factor: float = 1.0,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("embedding", EmbeddingArgs)
        self._args = EmbeddingArgs(first=first, factor=factor, format=CODES[dtype])
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        ids: torch.Tensor | None,
        table: torch.Tensor,
        scales: torch.Tensor | None = None,
        onto: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return rows as floats, zeros for ids outside the table: new ones, or `onto` with them
        added. Without ids every row is the table's first.

        Shapes: ids [T] int64, table [V, E], scales [V] float32, onto [T, E] -> [T, E] float32
        All contiguous; the table is of the dtype given at first. Mutates: onto
        """
        size, args = table.shape[1], self._args
        if onto is None:
            assert ids is not None, "ids or what is added to say how many rows there are"
            out = torch.empty((ids.shape[0], size))
            args.onto = None
        else:
            out = onto
            args.onto = onto.data_ptr()
        args.table, args.table_rows, args.size = table.data_ptr(), table.shape[0], size
        args.scales = None if scales is None else scales.data_ptr()
        args.ids = None if ids is None else ids.data_ptr()
        args.rows = out.shape[0]
        args.out = out.data_ptr()
        self._kernel(self._reference)
        return out


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the look-up made once for many calls."""
    rest = dict(arguments)
    look_up = LookUp(
        arguments["table"].dtype, first=rest.pop("first", 0), factor=rest.pop("factor", 1.0)
    )
    return {**rest, "layer": look_up}


NATIVE = native_implementation(call_layer, prepare=_prepare)
