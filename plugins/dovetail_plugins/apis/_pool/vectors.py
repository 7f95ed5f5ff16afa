"""Vectors as JSON: numbers, or their bytes in base64, optionally with fewer bits per number.

int8 and uint8 preserve the direction of a vector but not its length: each is scaled by its largest
absolute value. binary and ubinary store the signs, eight per byte, the first in the highest bit.
Source of the packing: `quantize_embeddings` of sentence-transformers.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

Format = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
Dtype = Literal["float32", "float", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"]
Endianness = Literal["native", "little", "big"]
Array = np.ndarray
_MOST = 127.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFormat:
    """The format of vectors. `dtype` is one of Dtype; with `is_base64` they are written as
    bytes."""

    dtype: str = "float32"
    is_base64: bool = False
    is_big_endian: bool = False

    def written(self, vector: Array) -> msgspec.Raw:
        """Return a vector, or a list of vectors, as JSON. Shapes: [D] or [n, D] float32"""
        numbers = _CONVERTED[self.dtype](vector)
        if not self.is_base64:
            shown = _floats_of_bits(numbers) if self.dtype == "bfloat16" else numbers
            return msgspec.Raw(msgspec.json.encode(shown.tolist()))
        if self.is_big_endian:
            numbers = numbers.astype(numbers.dtype.newbyteorder(">"))
        return base64_json(numbers.tobytes())


def vector_format(
    encoding: Format | None, dtype: Dtype | None = None, endianness: Endianness | None = None
) -> VectorFormat:
    """Return the format that a request asks for. The number type may be given in either field."""
    is_base64 = encoding == "base64"
    named = encoding if encoding not in (None, "float", "base64") else dtype
    return VectorFormat(
        dtype="float32" if named in (None, "float") else str(named),
        is_base64=is_base64,
        is_big_endian=endianness == "big",
    )


def base64_json(data: bytes) -> msgspec.Raw:
    """Return bytes as a base64 JSON string."""
    return msgspec.Raw(b'"' + binascii.b2a_base64(data, newline=False) + b'"')


def _scaled(vector: Array) -> Array:
    peak = np.abs(vector).max(axis=-1, keepdims=True)
    return np.rint(vector * (_MOST / np.where(peak > 0, peak, 1))).astype(np.int8)


def _shifted(vector: Array) -> Array:
    return (_scaled(vector).astype(np.int16) + 128).astype(np.uint8)


def _signs(vector: Array) -> Array:
    return np.packbits(vector > 0, axis=-1)


def _shifted_signs(vector: Array) -> Array:
    return (_signs(vector).astype(np.int16) - 128).astype(np.int8)


def _bfloat16_bits(vector: Array) -> Array:
    """Return the numbers rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(vector, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _floats_of_bits(bits: Array) -> Array:
    return (bits.astype("<u4") << 16).view("<f4")


_CONVERTED: dict[str, Callable[[Array], Array]] = {
    "float32": lambda vector: vector.astype("<f4", copy=False),
    "float16": lambda vector: vector.astype("<f2"),
    "bfloat16": _bfloat16_bits,
    "int8": _scaled,
    "uint8": _shifted,
    "binary": _shifted_signs,
    "ubinary": _signs,
}
