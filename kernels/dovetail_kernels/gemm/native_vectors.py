"""Matrices of vectors and trits as the native library takes them: points, and codes of scales.

Knows no product; `native.Packed` is the one who asks.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.gemm.weight import POINTS_GROUP, Weight, is_trits

MOST_BOOKS = 8
MIN_CODE_BITS, MAX_CODE_BITS = 8, 16


class VectorArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("points", ctypes.c_void_p),
        ("size", ctypes.c_int32),
        ("code_bits", ctypes.c_int32),
        ("num_books", ctypes.c_int32),
        ("has_signs", ctypes.c_int32),
        ("is_float", ctypes.c_int32),
    ]


def is_of_vectors(weight: Weight) -> bool:
    """Return whether the kernels of vectors multiply a weight."""
    return weight.points is not None or is_trits(weight.format)


def vector_args(weight: Weight) -> VectorArgs | None:
    """Return the library's arguments for a weight's points, which must live as long as it; None for
    other formats."""
    if not is_of_vectors(weight):
        return None
    assert weight.group % (POINTS_GROUP if weight.steps is None else POINTS_GROUP // 2) == 0
    assert weight.run % POINTS_GROUP == 0
    if weight.points is not None and weight.points.dtype == torch.float16:
        assert weight.signs is None and weight.format == "vectors"
        assert weight.group >= weight.shape[1]
    assert weight.points is None or weight.shape[1] % 8 == 0
    return point_args(weight.points, has_signs=weight.signs is not None)


def point_args(points: torch.Tensor | None, *, has_signs: bool) -> VectorArgs:
    """Return the library's arguments for points, which must live as long as they; None: of trits.

    Shapes: points [books, 2 ** code bits, values of a point]
    """
    if points is None:
        return VectorArgs()
    books, count, size = points.shape
    code_bits = count.bit_length() - 1
    assert points.is_contiguous() and count == 1 << code_bits
    assert MIN_CODE_BITS <= code_bits <= MAX_CODE_BITS
    is_float = points.dtype == torch.float16
    if is_float:
        assert size == 8 and books <= MOST_BOOKS
    else:
        assert size in (4, 8) and books == 1 and points.dtype == torch.int8
    return VectorArgs(
        points=points.data_ptr(),
        size=size,
        code_bits=code_bits,
        num_books=books,
        has_signs=int(has_signs),
        is_float=int(is_float),
    )


def halved_codes(weight: Weight) -> torch.Tensor | None:
    """Return the odd codes of two groups' scales in the halves of a byte, if there are any.

    Shapes: [N, K / G / 2 rounded up] uint8
    """
    if not is_of_vectors(weight) or weight.steps is None:
        return None
    codes = weight.scales
    assert codes is not None and codes.dtype == torch.int8
    assert bool(((codes & 1 == 1) & (codes > 0) & (codes < 32)).all())
    halves = torch.nn.functional.pad(codes.view(torch.uint8) >> 1, (0, codes.shape[1] % 2))
    return halves[:, ::2] | halves[:, 1::2] << 4
