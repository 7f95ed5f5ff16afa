"""The file of the tensorizer package, read by its layout: an index in front, then per tensor a
header and its bytes. Sizes are checked against the file before anything is mapped.

Layout (little-endian): "|TZR|", version (1 to 5), 32 bytes of flags, a size, 8 unused bytes, the
count of tensors, the bytes of the index, the index. Source: https://github.com/coreweave/tensorizer
Encrypted files, tensors without data and names that are paths into lists are told, not read.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from hashlib import sha256
from math import prod
from pathlib import Path

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.load_formats._files import check_is_content
from dovetail_plugins.load_formats._safetensors_file import Extent, Header

MAGIC = b"|TZR|"
HEAD = struct.Struct("<5sI32sQ8xQQ")
ENCRYPTED, VERSIONED = 1, 2
ENCRYPTED_VERSION, LAST_VERSION, LONG_SHAPES = 3, 5, 5
MAX_INDEX_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 2**20
MIN_ENTRY_BYTES = 29
"""What the smallest entry of an index takes: no count above index bytes / this can be true."""
PATH_MARK = b"\x1e"
CRC32, SHA256 = 0, 1

_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
_TYPES = {f"torch.{name}": getattr(torch, name) for name in (*_FLOATS, *_INTEGERS)}
_NUMPY_TYPES = {
    **{"<f8": torch.float64, "<f4": torch.float32, "<f2": torch.float16},
    **{"<i8": torch.int64, "<i4": torch.int32, "<i2": torch.int16},
    **{"|i1": torch.int8, "|u1": torch.uint8, "|b1": torch.bool},
}
"""Numpy's names; types that numpy lacks are raw bytes with torch's name behind a zero byte."""


def read_index(path: Path) -> Header:
    """Return the tensors of a file. Raises: ConfigError when index and file cannot belong."""
    size_bytes = check_is_content(path)
    with path.open("rb") as file:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size or not head.startswith(MAGIC):
            raise malformed(path, "it does not begin as one")
        _, version, raw_flags, _, count, index_bytes = HEAD.unpack(head)
        flags = int.from_bytes(raw_flags, "little")
        _check_readable(path, version, flags)
        if index_bytes > min(size_bytes - HEAD.size, MAX_INDEX_BYTES):
            raise malformed(path, f"an index of {index_bytes} bytes cannot lie in {size_bytes}")
        if not 0 < count <= index_bytes // MIN_ENTRY_BYTES:
            raise malformed(path, f"{count} tensors cannot stand in {index_bytes} bytes")
        entries = _Entries(path, file.read(index_bytes), bool(flags & VERSIONED))
    try:
        extents = tuple(entries.take() for _ in range(count))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise malformed(path, f"its index is cut or garbled: {error}") from error
    _check_places(path, extents, HEAD.size + index_bytes, size_bytes)
    return Header(path=path, extents=extents)


def mapped_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a mapped file; writing to one does not reach the file."""
    with (
        header.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as whole,
    ):
        for extent in header.extents:
            data = torch.empty(extent.shape, dtype=extent.dtype)
            if data.numel():
                # The mapping has to end with the file: a tensor in it would outlive it.
                view = memoryview(data.view(-1).view(torch.uint8).numpy())
                view[:] = whole[extent.start : extent.end]
            yield extent.name, data


class _Entries:
    """The index, taken entry by entry from its beginning."""

    def __init__(self, path: Path, content: bytes, is_versioned: bool) -> None:
        self._path = path
        self._content = content
        self._is_versioned = is_versioned
        self._at = 0

    def take(self) -> Extent:
        """Return the next tensor. Raises: ConfigError, or what struct raises past the end."""
        is_long = self._is_versioned and self._number("<I") >= LONG_SHAPES
        name = self._text("<H")
        self._at += 1  # parameter, buffer or entry of a dict: all the same here
        dtype = self._dtype(self._text("<B"), name)
        num_dims = self._number("<B")
        shape = self._numbers(f"<{num_dims}{'Q' if is_long else 'I'}")
        header, start, length = self._numbers("<QQQ")
        if length != prod(shape) * dtype.itemsize:
            raise malformed(self._path, f'tensor "{name}" of {length} bytes has shape {shape}')
        if not header <= start:
            raise malformed(self._path, f'tensor "{name}" lies before its own header')
        return Extent(name=name, dtype=dtype, shape=shape, start=start, end=start + length)

    def _numbers(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _number(self, layout: str) -> int:
        return self._numbers(layout)[0]

    def _text(self, count_layout: str) -> str:
        length = self._number(count_layout)
        raw = struct.unpack_from(f"{length}s", self._content, self._at)[0]
        self._at += length
        if raw.startswith(PATH_MARK) or not raw:
            raise malformed(self._path, "a name in it is a path into lists", "save a flat dict")
        return str(raw, "utf-8")

    def _dtype(self, text: str, name: str) -> torch.dtype:
        plain, _, torch_name = text.partition("\0")
        dtype = _TYPES.get(torch_name) if torch_name else _NUMPY_TYPES.get(plain)
        if dtype is None:
            raise malformed(self._path, f'tensor "{name}" has the unknown dtype {text!r}')
        return dtype


def _check_readable(path: Path, version: int, flags: int) -> None:
    """Raises: ConfigError for versions that are not known, and for encrypted files."""
    if not 1 <= version <= LAST_VERSION or flags & ~(ENCRYPTED | VERSIONED):
        raise malformed(path, f"version {version} with flags {flags:#x} is not known")
    if version == ENCRYPTED_VERSION or flags & ENCRYPTED:
        raise malformed(path, "it is encrypted", "decrypt it with the package that wrote it")


def _check_places(path: Path, extents: tuple[Extent, ...], start: int, size_bytes: int) -> None:
    """Raises: ConfigError when names repeat, or tensors overlap or leave the file."""
    if len({extent.name for extent in extents}) != len(extents):
        raise malformed(path, "two tensors have the same name")
    place = start
    for extent in sorted(extents, key=lambda e: (e.start, e.end)):
        if extent.start < place:
            raise malformed(path, f'tensor "{extent.name}" overlaps the index or another tensor')
        place = extent.end
    if place > size_bytes:
        raise malformed(path, f"the file is cut short: {size_bytes} of {place} bytes are there")


def malformed(path: Path, reason: str, fix: str = "write the file again") -> ConfigError:
    """Return the error for a file that is not what it should be."""
    return ConfigError(f"not a readable tensorizer file: {reason}", where=str(path), fix=fix)
