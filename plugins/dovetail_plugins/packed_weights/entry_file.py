"""One entry's file: the tensors of its matrices, then their index with a checksum of each.

Layout: tensors, each on a page's or a cache line's boundary, those of a matrix that takes a page or
more in pages of their own, the index in JSON, its bytes (8,
little-endian), its BLAKE2b digest (32), MAGIC. A file gets its name when all of it is on the disk,
so one that is cut or being written is never read.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from dovetail_kernels.checksum.native import sums_of
from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.native import PackedFacts
from dovetail_plugins.durable_files import sync_folder
from dovetail_plugins.packed_weights.folder import UNFINISHED, hold

MAGIC = b"DTPACKS\x01"
_TAIL = struct.Struct("<Q32s8s")
_ORDER = "order"
_PAGE, _LINE = 4096, 64
_PIECE_BYTES = 16 << 20


class Damaged(Exception):
    """A file is not a whole entry. The message says what is wrong."""


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a tensor is in the file, and its checksum."""

    start: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    digest: str


class StoredMatrix(msgspec.Struct, frozen=True):
    """One packed weight."""

    facts: PackedFacts
    tensors: dict[str, StoredTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a matrix is: in the file from `start` on, in memory from `address` on. Its tensors are
    views of `owner`, which is mapped memory; `name` is its layer's, for people."""

    name: str
    start: int
    num_bytes: int
    address: int
    stored: StoredMatrix
    owner: torch.Tensor

    @property
    def has_own_pages(self) -> bool:
        """Return whether nothing else is in its pages."""
        return self.num_bytes >= _PAGE and not (self.start % _PAGE or self.address % _PAGE)

    def check(self, content: torch.Tensor) -> None:
        """Compare bytes that were read of the file with the checksums. Shapes: [num_bytes] uint8

        Raises: Damaged
        """
        for word, one in self.stored.tensors.items():
            _check(content[one.start - self.start :][: one.num_bytes], word, self.name, one)


class Index(msgspec.Struct, frozen=True):
    """The content of an entry: the weights of each layer, which are several if they could not be
    joined. `model`: the checkpoint's path. `num_bytes`: of all tensors, with the gaps between them.
    """

    key: str
    model: str
    layers: dict[str, list[StoredMatrix]]
    num_bytes: int


def natives_of(matrix: Matrix) -> list[Matrix] | None:
    """Return the matrices of a layer, if the native library multiplies all of them."""
    parts = list(getattr(matrix, "parts", [matrix]))
    return parts if all(type(one) is Matrix and one.native is not None for one in parts) else None


class EntryWriter:
    """Writes an entry layer by layer. It gets its name when it is finished, and is gone if it is
    not. Use it as a context manager."""

    def __init__(self, path: Path, key: str, model: str) -> None:
        """Begin a file. `model`: the checkpoint's path, for people. Raises: OSError"""
        self._path, self._key, self._model = path, key, model
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
        self._file = self._unfinished.open("w+b", buffering=0)
        hold(self._file)
        self._layers: dict[str, list[StoredMatrix]] = {}
        self._end = 0

    def __enter__(self) -> EntryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def add(self, name: str, matrices: Sequence[Matrix]) -> None:
        """Write a layer's matrices. Raises: OSError"""
        self._layers[name] = [self._written(one) for one in matrices]

    def mapped(self, name: str) -> list[Matrix]:
        """Return the matrices of a layer that was added, in the file's memory. Raises: OSError"""
        self._file.truncate(self._end)
        stored = self._layers[name]
        start = min(one.start for matrix in stored for one in matrix.tensors.values())
        start = start // _PAGE * _PAGE
        content = _content(self._file, start, self._end - start)
        return [_restored(name, one, content, first=start, checks=False) for one in stored]

    @property
    def folder(self) -> Path:
        """Return the folder of the file."""
        return self._path.parent

    def places(self, name: str, matrices: Sequence[Matrix]) -> list[Place]:
        """Return where the mapped matrices of a layer are."""
        return _places(name, self._layers[name], matrices)

    def descriptor(self) -> int:
        """Return a descriptor of the file, which the caller closes. Raises: OSError"""
        return os.dup(self._file.fileno())

    def finish(self) -> None:
        """Write the index, and give the file its name. Raises: OSError"""
        index = Index(key=self._key, model=self._model, layers=self._layers, num_bytes=self._end)
        encoded = msgspec.json.encode(index)
        tail = _TAIL.pack(len(encoded), _index_digest(encoded), MAGIC)
        _write_all(self._file.fileno(), self._end, encoded + tail)
        os.fsync(self._file.fileno())
        self._unfinished.replace(self._path)
        with contextlib.suppress(OSError):  # not all file systems can
            sync_folder(self._path.parent)

    def _written(self, matrix: Matrix) -> StoredMatrix:
        """Write a matrix's tensors. Mutates: self"""
        tensors = {}
        if sum(tensor.nbytes for _, tensor in _tensors_of(matrix)) >= _PAGE:
            self._end = -(-self._end // _PAGE) * _PAGE
        for word, tensor in _tensors_of(matrix):
            raw = tensor.contiguous().view(-1).view(torch.uint8)
            step = _PAGE if len(raw) >= _PAGE else _LINE
            start = -(-self._end // step) * step
            _write_all(self._file.fileno(), start, raw.numpy().data)
            self._end = start + len(raw)
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = tuple(tensor.shape)
            tensors[word] = StoredTensor(start, len(raw), dtype, shape, _digest(raw))
        if sum(one.num_bytes for one in tensors.values()) >= _PAGE:
            self._end = -(-self._end // _PAGE) * _PAGE
        packed = matrix.native
        assert packed is not None, "only native matrices are written"
        return StoredMatrix(facts=packed.facts, tensors=tensors)


def write(path: Path, key: str, model: str, layers: Mapping[str, Sequence[Matrix]]) -> None:
    """Write an entry (see EntryWriter). Raises: OSError, after which no file is left"""
    with EntryWriter(path, key, model) as writer:
        for name, matrices in layers.items():
            writer.add(name, matrices)
        writer.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedEntry:
    """An entry's layers, mapped, and where each of their matrices is. `descriptor`: of the file,
    which the owner closes."""

    layers: dict[str, list[Matrix]]
    index: Index
    descriptor: int

    def places(self, name: str) -> list[Place]:
        """Return where the matrices of a layer are."""
        return _places(name, self.index.layers[name], self.layers[name])


def read(path: Path, key: str, *, checks_tensors: bool = True) -> dict[str, list[Matrix]]:
    """Return the layers of an entry, mapped (see mapped_entry)."""
    entry = mapped_entry(path, key, checks_tensors=checks_tensors)
    os.close(entry.descriptor)
    return entry.layers


def mapped_entry(path: Path, key: str, *, checks_tensors: bool = True) -> MappedEntry:
    """Return an entry, mapped.

    `checks_tensors`: compare every byte with its checksum, which reads all of them.
    Raises: OSError; Damaged if it is not a whole entry of this key
    """
    with path.open("rb") as file:
        index = _index(file)
        if index.key != key:
            raise Damaged("it has another key")
        content = _content(file, 0, index.num_bytes)
        layers = {
            name: [_restored(name, one, content, checks=checks_tensors) for one in matrices]
            for name, matrices in index.layers.items()
        }
        return MappedEntry(layers=layers, index=index, descriptor=os.dup(file.fileno()))


def check(path: Path, key: str) -> None:
    """Compare every byte of an entry with its checksum. One tensor at a time is in memory.

    Raises: OSError; Damaged if it is not a whole entry of this key
    """
    with path.open("rb") as file:
        index = _index(file)
        if index.key != key:
            raise Damaged("it has another key")
        for name, matrices in index.layers.items():
            for word, one in (item for matrix in matrices for item in matrix.tensors.items()):
                first = one.start // _PAGE * _PAGE
                content = _content(file, first, one.start + one.num_bytes - first)
                _check(content[one.start - first :], word, name, one)


def read_index(path: Path) -> Index:
    """Return an entry's index. Raises: OSError; Damaged"""
    with path.open("rb") as file:
        return _index(file)


def _index(file: BinaryIO) -> Index:
    """Return an entry's index. Raises: OSError; Damaged"""
    size = os.fstat(file.fileno()).st_size
    if size < _TAIL.size:
        raise Damaged("it is cut")
    file.seek(size - _TAIL.size)
    index_bytes, digest, magic = _TAIL.unpack(file.read(_TAIL.size))
    start = size - _TAIL.size - index_bytes
    if magic != MAGIC or start < 0:
        raise Damaged("its end is not that of an entry")
    file.seek(start)
    encoded = file.read(index_bytes)
    if _index_digest(encoded) != digest:
        raise Damaged("its index is damaged")
    try:
        index = msgspec.json.decode(encoded, type=Index)
    except msgspec.MsgspecError as error:
        raise Damaged(f"its index is not read: {error}") from error
    if index.num_bytes != start:
        raise Damaged(f"it has {start} bytes instead of {index.num_bytes}")
    return index


def _content(file: BinaryIO, start: int, size: int) -> torch.Tensor:
    """Return a part of a file, from a page's start on, as private memory. Shapes: [size] uint8"""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _index_digest(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=32).digest()


def _restored(
    name: str, stored: StoredMatrix, content: torch.Tensor, *, first: int = 0, checks: bool = True
) -> Matrix:
    """Return a matrix whose tensors are views of the content, which begins `first` bytes into the
    file. Raises: Damaged"""
    tensors = {}
    for word, one in stored.tensors.items():
        raw = content[one.start - first : one.start - first + one.num_bytes]
        if checks:
            _check(raw, word, name, one)
        tensors[word] = raw.view(getattr(torch, one.dtype)).view(one.shape)
    order = tensors.pop(_ORDER, None)
    return Matrix.restored(stored.facts, tensors, order)


def _check(raw: torch.Tensor, word: str, name: str, stored: StoredTensor) -> None:
    """Compare a tensor's bytes with its checksum. Raises: Damaged"""
    if _digest(raw) != stored.digest:
        raise Damaged(f"{word} of {name} is damaged")


def _places(name: str, stored: Sequence[StoredMatrix], matrices: Sequence[Matrix]) -> list[Place]:
    """Return where mapped matrices of a layer are."""
    found = []
    for one, matrix in zip(stored, matrices, strict=True):
        first, tensor = min(one.tensors.items(), key=lambda item: item[1].start)
        owner = dict(_tensors_of(matrix))[first]
        end = max(each.start + each.num_bytes for each in one.tensors.values())
        found.append(
            Place(
                name=name,
                start=tensor.start,
                num_bytes=end - tensor.start,
                address=owner.data_ptr(),
                stored=one,
                owner=owner,
            )
        )
    return found


def _tensors_of(matrix: Matrix) -> Iterator[tuple[str, torch.Tensor]]:
    packed = matrix.native
    assert packed is not None, "only native matrices are written"
    yield from packed.all_tensors().items()
    if matrix.order is not None:
        yield _ORDER, matrix.order


def _digest(raw: torch.Tensor) -> str:
    """Return the checksum of bytes. Shapes: [N] uint8"""
    sums = sums_of(raw) if len(raw) else torch.empty(0, dtype=torch.int32)
    return hashlib.blake2b(sums.numpy().tobytes(), digest_size=16).hexdigest()


def _write_all(descriptor: int, place: int, data: bytes | memoryview) -> None:
    """Write all bytes at a place of a file. Raises: OSError"""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:_PIECE_BYTES], place)
        place, view = place + written, view[written:]
