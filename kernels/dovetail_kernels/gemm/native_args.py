"""The argument structs of gemm's kernels (see args.h)."""

from __future__ import annotations

import ctypes

from dovetail_kernels.bit_fields.native import BitFieldsArgs
from dovetail_kernels.gemm.native_vectors import VectorArgs

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class GemmArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("out", _pointer),
        ("weight", _pointer),
        ("scales", _pointer),
        ("zeros", _pointer),
        ("offsets", _pointer),
        ("steps", _pointer),
        ("offset_steps", _pointer),
        ("table", _pointer),
        ("outer", _pointer),
        ("vectors", ctypes.POINTER(VectorArgs)),
        ("bias", _pointer),
        ("residual", _pointer),
        ("picks", _pointer),
        ("x_stride", _int64),
        ("out_stride", _int64),
        ("bias_stride", _int64),
        ("rows", _int64),
        ("in_size", _int64),
        ("out_size", _int64),
        ("group", _int64),
        ("rounded_inputs", _int64),
        ("format", _int32),
        ("activation", _int32),
        ("is_gated", _int32),
        ("scale_format", _int32),
        ("step_format", _int32),
        ("run_shift", _int32),
        ("limit", ctypes.c_float),
    ]


class PackArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("weight", _pointer),
        ("rows", _pointer),
        ("signs", _pointer),
        ("vectors", ctypes.POINTER(VectorArgs)),
        ("packed", _pointer),
        ("in_size", _int64),
        ("out_size", _int64),
        ("packed_bytes", _int64),
        ("format", _int32),
        ("is_gated", _int32),
    ]


class FieldsPackArgs(ctypes.Structure):
    """See cpu_pack.cpp."""

    _fields_ = [("pack", PackArgs), ("fields", BitFieldsArgs)]


class SpreadArgs(ctypes.Structure):
    """See cpu_pack.cpp."""

    _fields_ = [
        ("source", _pointer),
        ("to", _pointer),
        ("out_size", _int64),
        ("groups", _int64),
        ("row_bytes", _int64),
        ("group_bytes", _int64),
        ("number_bytes", _int32),
        ("is_gated", _int32),
    ]


class RowsArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("index", _pointer),
        ("out", _pointer),
        ("weight", _pointer),
        ("scales", _pointer),
        ("zeros", _pointer),
        ("offsets", _pointer),
        ("steps", _pointer),
        ("offset_steps", _pointer),
        ("table", _pointer),
        ("outer", _pointer),
        ("vectors", ctypes.POINTER(VectorArgs)),
        ("count", _int64),
        ("in_size", _int64),
        ("out_size", _int64),
        ("group", _int64),
        ("first", _int64),
        ("format", _int32),
        ("scale_format", _int32),
        ("step_format", _int32),
        ("run_shift", _int32),
    ]


class GroupArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [("items", ctypes.POINTER(GemmArgs)), ("count", _int64)]
