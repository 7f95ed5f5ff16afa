"""The header of a safetensors file, checked against the file's length. Imports no torch.

Format: 8 bytes little-endian header length, a JSON header (name -> dtype, shape, data_offsets),
then the data. Source: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.json_values import InvalidJson, WrongShape, json_struct
from dovetail_plugins.load_formats._files import check_is_content

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

LENGTH_BYTES = 8
METADATA = "__metadata__"
"""The header's entry that is not a tensor."""

TYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "U16": ("uint16", 2),
    "U32": ("uint32", 4),
    "U64": ("uint64", 8),
}
"""The format's word for a type -> torch's name of it, and the bytes of a number."""


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Told(msgspec.Struct):
    """A header's entry for a tensor."""

    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


class TensorEntry(NamedTuple):
    """One tensor; `dtype` is torch's name, `start` and `end` count bytes from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_entries(path: Path) -> tuple[TensorEntry, ...]:
    """Return the tensors of a file. Raises: ConfigError when it and its header cannot belong
    together."""
    return entries_of(path, *_raw(path))


def read_metadata(path: Path) -> dict[str, str]:
    """Return the file's metadata. Raises: ConfigError when it has no valid header."""
    words = _words(path, _raw(path)[0]).get(METADATA, msgspec.Raw(b"{}"))
    try:
        found = json_struct(words)
    except InvalidJson as error:
        raise malformed(path, f"{METADATA} {error}") from error
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def read_headers(files: Sequence[Path]) -> Iterator[TensorHeader]:
    """Yield the tensors of several files. Raises: ConfigError for a file that is not valid."""
    for path in files:
        for entry in read_entries(path):
            yield TensorHeader(
                name=entry.name,
                shape=entry.shape,
                dtype=entry.dtype,
                num_bytes=entry.end - entry.start,
                file=path.name,
            )


def malformed(path: Path, reason: str) -> ConfigError:
    """Return the error for a file that is not a safetensors file."""
    return ConfigError(
        f"not a valid safetensors file: {reason}", where=str(path), fix="download the file again."
    )


def entries_of(path: Path, raw: bytes, size_bytes: int) -> tuple[TensorEntry, ...]:
    """Return the tensors in a header, the JSON `raw` of a file of `size_bytes`.

    Raises: ConfigError when they cannot belong together.
    """
    raw_entries = _words(path, raw)
    raw_entries.pop(METADATA, None)
    data_start = LENGTH_BYTES + len(raw)
    entries = tuple(_entry(path, name, words, data_start) for name, words in raw_entries.items())
    _check_cover(path, entries, data_start, size_bytes)
    return entries


def header_bytes(path: Path, first: bytes, size_bytes: int) -> int:
    """Return the length of the header's JSON, which the file begins with. Raises: ConfigError"""
    length = int.from_bytes(first, "little")
    if size_bytes < LENGTH_BYTES or length > min(MAX_HEADER_BYTES, size_bytes - LENGTH_BYTES):
        raise malformed(path, f"a header of {length} bytes does not fit into {size_bytes} bytes")
    return length


def _raw(path: Path) -> tuple[bytes, int]:
    """Return (the header's JSON, the file's bytes). Raises: ConfigError"""
    size_bytes = check_is_content(path)
    with path.open("rb") as file:
        return file.read(header_bytes(path, file.read(LENGTH_BYTES), size_bytes)), size_bytes


def _words(path: Path, raw: bytes) -> dict[str, msgspec.Raw]:
    """Return a header's entry for each name, not yet parsed. Raises: ConfigError"""
    try:
        return dict(json_struct(raw, dict[str, msgspec.Raw]))
    except WrongShape as error:
        raise malformed(path, "the header is not a JSON object") from error
    except InvalidJson as error:
        raise malformed(path, f"the header {error}") from error


def _entry(path: Path, name: str, words: msgspec.Raw, data_start: int) -> TensorEntry:
    """Return one checked header entry."""
    try:
        entry: _Told = json_struct(words, _Told)
    except InvalidJson as error:
        what = f'tensor "{name}" has no valid shape, data_offsets or dtype: it {error}'
        raise malformed(path, what) from error
    shape, (start, end) = entry.shape, entry.data_offsets
    known = TYPES.get(entry.dtype)
    if known is None:
        raise malformed(path, f'tensor "{name}" has the unknown dtype {entry.dtype}')
    if end - start != math.prod(shape) * known[1]:
        raise malformed(path, f'tensor "{name}" spans {[start, end]} but has shape {[*shape]}')
    return TensorEntry(name, known[0], shape, data_start + start, data_start + end)


def _check_cover(path: Path, entries: tuple[TensorEntry, ...], start: int, size_bytes: int) -> None:
    """Raises: ConfigError unless the tensors fill the rest of the file without gap or overlap."""
    end = max((e.end for e in entries), default=start)
    if end > size_bytes:
        raise malformed(path, f"the file is cut short: {size_bytes} of {end} bytes are there")
    if end < size_bytes:
        raise malformed(path, f"{size_bytes - end} bytes follow the last tensor")
    place = start
    for entry in sorted(entries, key=attrgetter("start", "end")):
        if entry.start != place:
            raise malformed(path, f'tensor "{entry.name}" overlaps another or leaves a gap')
        place = entry.end
