"""One safetensors file: its tensors, lazy or eager. The header's checks: _safetensors_header."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dovetail_plugins.load_formats._files import check_is_content
from dovetail_plugins.load_formats._mapped import MappedFile
from dovetail_plugins.load_formats._safetensors_header import (
    LENGTH_BYTES,
    TYPES,
    TensorEntry,
    entries_of,
    header_bytes,
    malformed,
    read_entries,
)

DTYPES = {name: getattr(torch, name) for name, _ in TYPES.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileExtent:
    """One tensor in the file; `start` and `end` count bytes from the file's beginning."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The checked header of one file."""

    path: Path
    extents: tuple[FileExtent, ...]

    @property
    def data_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(e.end - e.start for e in self.extents)


def read_header(path: Path) -> Header:
    """Return the header. Raises: ConfigError when file and header cannot belong together."""
    return Header(path=path, extents=tuple(map(_extent, read_entries(path))))


def _extent(entry: TensorEntry) -> FileExtent:
    dtype = DTYPES[entry.dtype]
    return FileExtent(
        name=entry.name, dtype=dtype, shape=entry.shape, start=entry.start, end=entry.end
    )


class WholeFile:
    """One small file (interfaces.adapter.AdapterContent), and its header's JSON. It stays open, so
    that replacing the file on disk has no effect; if it is truncated, an error is raised."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises: ConfigError when there is none"""
        size = check_is_content(path)
        self.path, self.is_read = path, False
        self.memory = torch.empty(size, dtype=torch.uint8)
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        first = bytearray(min(size, LENGTH_BYTES))
        self.read_piece(0, memoryview(first))
        header = bytearray(header_bytes(path, bytes(first), size))
        self.read_piece(LENGTH_BYTES, memoryview(header))
        self.header = bytes(header)

    def read(self) -> None:
        """Read all bytes into memory. Raises: ConfigError when it was cut. Mutates: self"""
        if not self.is_read:
            self.read_piece(0, self.memory.numpy().data)
            self.is_read = True

    def read_piece(self, start: int, piece: memoryview) -> None:
        """Fill memory with bytes from `start` on. Raises: ConfigError when there are not as many.
        Mutates: piece"""
        done = 0
        try:
            self._file.seek(start)
            while done < len(piece) and (count := self._file.readinto(piece[done:])):
                done += count
        except OSError as error:
            raise malformed(self.path, f"it cannot be read: {error}") from error
        if done < len(piece):
            raise malformed(self.path, "it was cut while it was read")

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, as `views`, with their numbers. Raises: ConfigError"""
        self.read()
        yield from self.views()

    def views(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors. If all are aligned they are views of the memory, filled once it is
        read; otherwise it is read first. Raises: ConfigError when header and content cannot belong
        together"""
        entries = entries_of(self.path, self.header, len(self.memory))
        words = {kind: _as(self.memory, DTYPES[kind]) for kind in {e.dtype for e in entries}}
        sizes = {kind: one.itemsize for kind, one in words.items()}
        if any(e.start == e.end or e.start % sizes[e.dtype] for e in entries):
            self.read()
        for entry in entries:
            yield entry.name, _view(self.memory, words[entry.dtype], entry, 0)


def without(header: Header, is_skipped: Callable[[str], bool]) -> Header:
    """Return the header without the tensors of some names."""
    extents = tuple(extent for extent in header.extents if not is_skipped(extent.name))
    return Header(path=header.path, extents=extents)


def lazy_tensors(header: Header, *, lets_go: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a mapped file; their bytes are read when they are copied. If it
    `lets_go`, pages of a tensor leave this process's memory when the next one is requested.

    Raises: ConfigError when the file has become shorter since its header was read.
    """
    mapped = MappedFile(header.path)
    for extent in header.extents:
        if extent.start == extent.end:
            yield extent.name, torch.empty(extent.shape, dtype=extent.dtype)
            continue
        raw = mapped.read(extent.start, extent.end)
        raw = raw if extent.start % extent.dtype.itemsize == 0 else raw.clone()
        yield extent.name, raw.view(extent.dtype).view(extent.shape)
        if lets_go:
            mapped.let_go(extent.start, extent.end)


def eager_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the file from its first to its last tensor in one go, then yield them. For slow or
    remote disks.

    Raises: ConfigError when the file has become shorter since its header was read.
    """
    first = min((e.start for e in header.extents), default=0)
    size = max((e.end for e in header.extents), default=0) - first
    content = torch.empty(size, dtype=torch.uint8)
    _read_into(header.path, first, content)
    words = {kind: _as(content, kind) for kind in {e.dtype for e in header.extents}}
    for extent in header.extents:
        yield extent.name, _view(content, words[extent.dtype], extent, first)


def _read_into(path: Path, start: int, content: torch.Tensor) -> None:
    """Fill memory with a file's bytes from `start` on. Raises: ConfigError when there are not as
    many. Mutates: content"""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        read = 0
        while count := file.readinto(content.numpy().data[read:]):
            read += count
    if read < len(content):
        raise malformed(path, "it was cut while it was read")


def _as(content: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return all bytes as numbers, without those at the end that are not a whole one."""
    return content[: len(content) // dtype.itemsize * dtype.itemsize].view(dtype)


def _view(
    content: torch.Tensor, words: torch.Tensor, extent: FileExtent | TensorEntry, first: int
) -> torch.Tensor:
    """Return the tensor in the file's bytes from `first` on, which are `words` in its type; copied
    only if it is not aligned."""
    start, shape = extent.start - first, extent.shape
    place, odd = divmod(start, words.itemsize)
    if odd or extent.start == extent.end:
        raw = content[start : extent.end - first].clone()
        return raw.view(words.dtype).view(shape)
    if len(shape) == 2:  # the shape of almost all tensors, and there may be many
        return words.as_strided(shape, (shape[1], 1), place)
    return words[place : place + math.prod(shape)].view(shape)
