"""One safetensors file: its header checked against its length, then its tensors, lazy or eager.

Format: 8 bytes little-endian header length, a JSON header (name -> dtype, shape, data_offsets),
then the data. Source: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError, safe_open

from dovetail.errors import ConfigError
from dovetail_plugins.load_formats._files import check_is_content

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

METADATA = "__metadata__"
"""The header's entry that is no tensor."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
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
    extents: tuple[Extent, ...]

    @property
    def data_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(e.end - e.start for e in self.extents)


def read_header(path: Path) -> Header:
    """Return the header. Raises: ConfigError when file and header cannot belong together."""
    entries, data_start, size_bytes = _entries(path)
    entries.pop(METADATA, None)
    extents = tuple(_extent(path, name, entry, data_start) for name, entry in entries.items())
    _check_cover(path, extents, data_start, size_bytes)
    return Header(path=path, extents=extents)


def read_metadata(path: Path) -> dict[str, str]:
    """Return what the file says about itself. Raises: ConfigError when it has no valid header."""
    found = _entries(path)[0].get(METADATA)
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _entries(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return (the header's JSON, where the data begin, the file's bytes). Raises: ConfigError."""
    size_bytes = check_is_content(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or length > MAX_HEADER_BYTES or 8 + length > size_bytes:
            raise _malformed(path, f"a header of {length} bytes cannot lie in {size_bytes} bytes")
        raw = file.read(length)
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"the header is no JSON: {error}") from error
    if not isinstance(entries, dict):
        raise _malformed(path, "the header is no JSON object")
    return entries, 8 + length, size_bytes


def lazy_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a mapped file; their bytes are read when they are copied.

    Raises: ConfigError when the library finds what the header check has not.
    """
    try:
        with safe_open(str(header.path), framework="pt") as file:
            for extent in header.extents:
                yield extent.name, file.get_tensor(extent.name)
    except SafetensorError as error:
        raise _malformed(header.path, str(error)) from error


def eager_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the whole file at once, then yield its tensors. For slow or remote disks.

    Raises: ConfigError when the file has become shorter since its header was read.
    """
    content = bytearray(header.path.stat().st_size)
    with header.path.open("rb") as file:
        if file.readinto(content) < max((e.end for e in header.extents), default=0):
            raise _malformed(header.path, "it was cut while it was read")
    for extent in header.extents:
        yield extent.name, _view(content, extent)


def _view(content: bytearray, extent: Extent) -> torch.Tensor:
    """Return the tensor in the file's bytes, copied only where it is not aligned."""
    num_bytes = extent.end - extent.start
    if num_bytes == 0:
        return torch.empty(extent.shape, dtype=extent.dtype)
    raw = torch.frombuffer(content, dtype=torch.uint8, offset=extent.start, count=num_bytes)
    if raw.data_ptr() % extent.dtype.itemsize:
        raw = raw.clone()
    return raw.view(extent.dtype).view(extent.shape)


def _extent(path: Path, name: str, entry: Any, data_start: int) -> Extent:
    """Return one checked header entry."""
    fields = entry if isinstance(entry, dict) else {}
    dtype = DTYPES.get(str(fields.get("dtype")))
    if dtype is None:
        raise _malformed(path, f'tensor "{name}" has the unknown dtype {fields.get("dtype")}')
    shape, offsets = fields.get("shape"), fields.get("data_offsets")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise _malformed(path, f'tensor "{name}" has no valid shape or data_offsets')
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise _malformed(path, f'tensor "{name}" spans {offsets} but has shape {shape}')
    start, end = data_start + offsets[0], data_start + offsets[1]
    return Extent(name=name, dtype=dtype, shape=tuple(shape), start=start, end=end)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_cover(path: Path, extents: tuple[Extent, ...], start: int, size_bytes: int) -> None:
    """Raises: ConfigError unless the tensors fill the rest of the file without gap or overlap."""
    end = max((e.end for e in extents), default=start)
    if end > size_bytes:
        raise _malformed(path, f"the file is cut short: {size_bytes} of {end} bytes are there")
    if end < size_bytes:
        raise _malformed(path, f"{size_bytes - end} bytes follow the last tensor")
    place = start
    for extent in sorted(extents, key=lambda e: (e.start, e.end)):
        if extent.start != place:
            raise _malformed(path, f'tensor "{extent.name}" overlaps another or leaves a gap')
        place = extent.end


def _malformed(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"not a valid safetensors file: {reason}", where=str(path), fix="download the file again"
    )
