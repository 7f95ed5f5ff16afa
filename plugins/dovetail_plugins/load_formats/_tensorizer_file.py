"""The file of the tensorizer package, read by its layout: an index in front, then per tensor a
header and its bytes. Sizes are checked against the file before anything is mapped.

Layout (little-endian): "|TZR|", version (1 to 5), 32 bytes of flags, a size, 8 unused bytes, the
count of tensors, the bytes of the index, the index. Source: https://github.com/coreweave/tensorizer
Encrypted files, tensors without data and names that are paths into lists are reported, not read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import IO

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.load_formats._files import check_is_content
from dovetail_plugins.load_formats._memory import passing_tensor
from dovetail_plugins.load_formats._safetensors_file import FileExtent, Header

MAGIC = b"|TZR|"
HEAD = struct.Struct("<5sI32sQ8xQQ")
ENCRYPTED, VERSIONED = 1, 2
ENCRYPTED_VERSION, LAST_VERSION, LONG_SHAPES = 3, 5, 5
MAX_INDEX_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 2**20
MIN_ENTRY_BYTES = 29
"""Bytes of the smallest possible index entry: no count above index bytes / this can be true."""
END_BYTES = 8
"""A header length of zero after the last tensor."""
PATH_MARK = b"\x1e"
CRC32, SHA256 = 0, 1

_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
_TYPES = {f"torch.{name}": getattr(torch, name) for name in (*_FLOATS, *_INTEGERS)}
_NUMPY_TYPES = {
    "<f8": torch.float64,
    "<f4": torch.float32,
    "<f2": torch.float16,
    "<i8": torch.int64,
    "<i4": torch.int32,
    "<i2": torch.int16,
    "|i1": torch.int8,
    "|u1": torch.uint8,
    "|b1": torch.bool,
}
"""Numpy's names; types that numpy lacks are raw bytes with torch's name after a zero byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A checked file: its tensors, the start of each one's own header, and the bytes per dimension
    of the shape in that header."""

    header: Header
    header_starts: dict[str, int]
    dim_bytes: dict[str, int]


def read_index(path: Path) -> Index:
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
            raise malformed(path, f"an index of {index_bytes} bytes does not fit into {size_bytes}")
        if not 0 < count <= index_bytes // MIN_ENTRY_BYTES:
            raise malformed(path, f"{count} tensors do not fit into {index_bytes} bytes")
        entries = _Entries(path, file.read(index_bytes), bool(flags & VERSIONED))
    try:
        extents = tuple(entries.take() for _ in range(count))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise malformed(path, f"its index is cut or garbled: {error}") from error
    _check_places(path, extents, HEAD.size + index_bytes, size_bytes)
    return Index(
        header=Header(path=path, extents=extents),
        header_starts=entries.header_starts,
        dim_bytes=entries.dim_bytes,
    )


def read_tensors(index: Index, *, verifies: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in file order. Raises: ConfigError for a wrong checksum (if it `verifies`),
    or when the file has become shorter."""
    with index.header.path.open("rb", buffering=0) as file:
        for extent in sorted(index.header.extents, key=lambda e: e.start):
            data = passing_tensor(extent.shape, extent.dtype)
            view = data.view(-1).view(torch.uint8).numpy().data if data.numel() else b""
            file.seek(extent.start)
            done = 0
            while done < len(view):
                num_bytes = file.readinto(view[done:])
                if not num_bytes:
                    raise malformed(index.header.path, "it was cut while it was read")
                done += num_bytes
            if verifies:
                _verify(file, index, extent, view)
            yield extent.name, data


def _verify(file: IO[bytes], index: Index, extent: FileExtent, data: memoryview | bytes) -> None:
    """Raises: ConfigError unless the tensor's own header agrees with the index, and each of its
    checksums matches header and data.

    The header: its length, 2 + 1 bytes, name, dtype and shape with their lengths, the checksums
    (counted as zeros when they were made), the length of the data.
    """
    path, start = index.header.path, index.header_starts[extent.name]
    file.seek(start)
    raw = bytearray(file.read(min(extent.start - start, MAX_HEADER_BYTES)))
    try:
        raw = raw[: struct.unpack_from("<Q", raw)[0]]
        name, at = _counted(raw, 11, "<H")
        dtype, at = _counted(raw, at, "<B")
        num_dims = raw[at]
        layout = f"<{num_dims}{'Q' if index.dim_bytes[extent.name] == 8 else 'I'}"
        shape = struct.unpack_from(layout, raw, at + 1)
        at += 1 + struct.calcsize(layout)
        checksums = list(
            _take_checksums(raw, at + 2, at + 2 + struct.unpack_from("<H", raw, at)[0])
        )
        says = (str(name, "utf-8"), _dtype_named(str(dtype, "utf-8")), shape)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise malformed(path, f'the header of "{extent.name}" is garbled: {error}') from error
    if says != (extent.name, extent.dtype, extent.shape):
        raise malformed(path, f'"{extent.name}" is another tensor in the index than in its header')
    if not checksums:
        raise malformed(path, f'tensor "{extent.name}" has no checksum', "leave verify_hash out")
    for kind, checksum in checksums:
        if kind == CRC32:
            found = zlib.crc32(data, zlib.crc32(raw)).to_bytes(4, "little")
        else:
            found = sha256(bytes(raw) + bytes(data)).digest()
        if found != checksum:
            raise malformed(path, f'tensor "{extent.name}" has another checksum than it says')


def _counted(raw: bytes | bytearray, at: int, layout: str) -> tuple[bytes, int]:
    """Return (the bytes after a count, the position after them). Raises: struct.error"""
    length = struct.unpack_from(layout, raw, at)[0]
    at += struct.calcsize(layout)
    return struct.unpack_from(f"{length}s", raw, at)[0], at + length


def _dtype_named(text: str) -> torch.dtype | None:
    """Return the type of a name: numpy's, or torch's after a zero byte."""
    plain, _, torch_name = text.partition("\0")
    return _TYPES.get(torch_name) if torch_name else _NUMPY_TYPES.get(plain)


def _take_checksums(raw: bytearray, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, checksum) and overwrite it with zeros. Raises: IndexError. Mutates: raw"""
    at = start + 1
    for _ in range(raw[start]):
        kind, length = raw[at], raw[at + 1]
        if kind not in (CRC32, SHA256) or at + 2 + length > min(end, len(raw)):
            raise IndexError(f"checksum of kind {kind} and {length} bytes")
        yield kind, bytes(raw[at + 2 : at + 2 + length])
        raw[at + 2 : at + 2 + length] = bytes(length)
        at += 2 + length


class _Entries:
    """The index, taken entry by entry from its beginning."""

    def __init__(self, path: Path, content: bytes, is_versioned: bool) -> None:
        self._path = path
        self._content = content
        self._is_versioned = is_versioned
        self._at = 0
        self.header_starts: dict[str, int] = {}
        self.dim_bytes: dict[str, int] = {}

    def take(self) -> FileExtent:
        """Return the next tensor. Raises: ConfigError, or struct's error past the end."""
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
            raise malformed(self._path, f'tensor "{name}" is before its own header')
        self.header_starts[name], self.dim_bytes[name] = header, 8 if is_long else 4
        return FileExtent(name=name, dtype=dtype, shape=shape, start=start, end=start + length)

    def _numbers(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _number(self, layout: str) -> int:
        return self._numbers(layout)[0]

    def _text(self, count_layout: str) -> str:
        raw, self._at = _counted(self._content, self._at, count_layout)
        if raw.startswith(PATH_MARK) or not raw:
            raise malformed(self._path, "a name in it is a path into lists", "save a flat dict")
        return str(raw, "utf-8")

    def _dtype(self, text: str, name: str) -> torch.dtype:
        dtype = _dtype_named(text)
        if dtype is None:
            raise malformed(self._path, f'tensor "{name}" has the unknown dtype {text!r}')
        return dtype


def _check_readable(path: Path, version: int, flags: int) -> None:
    """Raises: ConfigError for versions that are not known, and for encrypted files."""
    if not 1 <= version <= LAST_VERSION or flags & ~(ENCRYPTED | VERSIONED):
        raise malformed(path, f"version {version} with flags {flags:#x} is not known")
    if version == ENCRYPTED_VERSION or flags & ENCRYPTED:
        raise malformed(path, "it is encrypted", "decrypt it with the package that wrote it")


def _check_places(path: Path, extents: tuple[FileExtent, ...], start: int, size_bytes: int) -> None:
    """Raises: ConfigError when names repeat, or tensors overlap or leave the file."""
    if len({extent.name for extent in extents}) != len(extents):
        raise malformed(path, "two tensors have the same name")
    place = start
    for extent in sorted(extents, key=lambda e: (e.start, e.end)):
        if extent.start < place:
            raise malformed(path, f'tensor "{extent.name}" overlaps the index or another tensor')
        place = extent.end
    if place + END_BYTES > size_bytes:
        shortfall = f"{size_bytes} of {place + END_BYTES} bytes are there"
        raise malformed(path, f"the file is cut short: {shortfall}")


def malformed(path: Path, reason: str, fix: str = "write the file again") -> ConfigError:
    """Return the error for a malformed file."""
    return ConfigError(f"not a readable tensorizer file: {reason}", where=str(path), fix=fix)
