"""One entry's file: the index of its matrices, then their tensors, each with a checksum.

Layout: MAGIC, the index's bytes (8, little-endian), the index's BLAKE2b digest (32), the index in
JSON, then tensors, each on a page's or a cache line's boundary. A file gets its name when all of it
is on the disk, so one that is cut or being written is never read.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from dovetail_kernels.checksum.native import sums_of
from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.native import PackedFacts
from dovetail_plugins.weight_cache.folder import UNFINISHED

MAGIC = b"DTPACKS\x01"
_HEAD = struct.Struct("<8sQ32s")
_ORDER = "order"
_PAGE, _LINE = 4096, 64
_PIECE_BYTES = 16 << 20


class Damaged(Exception):
    """A file is not a whole entry. The message says what is wrong."""


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a tensor is, counted from the end of the index, and its checksum."""

    start: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]
    digest: str


class StoredMatrix(msgspec.Struct, frozen=True):
    """One packed weight."""

    facts: PackedFacts
    tensors: dict[str, StoredTensor]


class Index(msgspec.Struct, frozen=True):
    """The content of an entry: the weights of each layer, which are several if they could not be
    joined. `model`: the checkpoint's path. `num_bytes`: of all tensors, with the gaps between them.
    """

    key: str
    model: str
    layers: dict[str, list[StoredMatrix]]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A tensor that is to be written at a place."""

    start: int
    data: torch.Tensor


def natives_of(matrix: Matrix) -> list[Matrix] | None:
    """Return the matrices of a layer, if the native library multiplies all of them."""
    parts = list(getattr(matrix, "parts", [matrix]))
    return parts if all(type(one) is Matrix and one.native is not None for one in parts) else None


def write(path: Path, key: str, model: str, layers: Mapping[str, list[Matrix]]) -> None:
    """Write an entry. `model`: the checkpoint's path, for people. Raises: OSError, after which no
    file is left"""
    index, pieces = _planned(key, model, layers)
    encoded = msgspec.json.encode(index)
    head = _HEAD.pack(MAGIC, len(encoded), _index_digest(encoded))
    first = _first(len(encoded))
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        with unfinished.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, first + index.num_bytes)
            _write_all(file.fileno(), 0, head + encoded)
            for piece in pieces:
                _write_all(file.fileno(), first + piece.start, piece.data.numpy().data)
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path, key: str) -> dict[str, list[Matrix]]:
    """Return the layers of an entry, mapped; every byte is compared with its checksum.

    Raises: OSError; Damaged if it is not a whole entry of this key
    """
    with path.open("rb") as file:
        index, first = _index(file)
        if index.key != key:
            raise Damaged("it has another key")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    content = torch.frombuffer(mapped, dtype=torch.uint8)[first:]
    return {
        name: [_restored(name, one, content) for one in matrices]
        for name, matrices in index.layers.items()
    }


def read_index(path: Path) -> Index:
    """Return an entry's index. Raises: OSError; Damaged"""
    with path.open("rb") as file:
        return _index(file)[0]


def _index(file: BinaryIO) -> tuple[Index, int]:
    """Return an entry's index and where its tensors begin. Raises: OSError; Damaged"""
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise Damaged("it is cut")
    magic, index_bytes, digest = _HEAD.unpack(head)
    if magic != MAGIC or index_bytes > size:
        raise Damaged("it is not an entry")
    encoded = file.read(index_bytes)
    if _index_digest(encoded) != digest:
        raise Damaged("its index is damaged")
    try:
        index = msgspec.json.decode(encoded, type=Index)
    except msgspec.MsgspecError as error:
        raise Damaged(f"its index is not read: {error}") from error
    first = _first(index_bytes)
    if first + index.num_bytes != size:
        raise Damaged(f"it has {size} bytes instead of {first + index.num_bytes}")
    return index, first


def _index_digest(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=32).digest()


def _restored(name: str, stored: StoredMatrix, content: torch.Tensor) -> Matrix:
    """Return a matrix whose tensors are views of the content. Raises: Damaged"""
    tensors = {}
    for word, one in stored.tensors.items():
        raw = content[one.start : one.start + one.num_bytes]
        if _digest(raw) != one.digest:
            raise Damaged(f"{word} of {name} is damaged")
        tensors[word] = raw.view(getattr(torch, one.dtype)).view(one.shape)
    order = tensors.pop(_ORDER, None)
    return Matrix.restored(stored.facts, tensors, order)


def _planned(
    key: str, model: str, layers: Mapping[str, list[Matrix]]
) -> tuple[Index, list[_Piece]]:
    """Return the index, and the tensors with their places."""
    pieces: list[_Piece] = []
    end = 0
    found: dict[str, list[StoredMatrix]] = {}
    for name, matrices in layers.items():
        found[name] = []
        for matrix in matrices:
            tensors = {}
            for word, tensor in _tensors_of(matrix):
                raw = tensor.contiguous().view(-1).view(torch.uint8)
                step = _PAGE if len(raw) >= _PAGE else _LINE
                start = -(-end // step) * step
                tensors[word] = StoredTensor(
                    start, len(raw), str(tensor.dtype).removeprefix("torch."),
                    tuple(tensor.shape), _digest(raw),
                )  # fmt: skip
                pieces.append(_Piece(start=start, data=raw))
                end = start + len(raw)
            packed = matrix.native
            assert packed is not None, "only native matrices are written"
            found[name].append(StoredMatrix(facts=packed.facts, tensors=tensors))
    return Index(key=key, model=model, layers=found, num_bytes=end), pieces


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


def _first(index_bytes: int) -> int:
    """Return where the first tensor may begin."""
    return -(-(_HEAD.size + index_bytes) // _PAGE) * _PAGE


def _write_all(descriptor: int, place: int, data: bytes | memoryview) -> None:
    """Write all bytes at a place of a file. Raises: OSError"""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:_PIECE_BYTES], place)
        place, view = place + written, view[written:]


def _sync_folder(folder: Path) -> None:
    """Write the folder's new name to the disk, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
