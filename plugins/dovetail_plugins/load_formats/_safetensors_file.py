"""One safetensors file: its tensors, lazy or eager. The header's checks: _safetensors_header."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from dovetail_plugins.load_formats._safetensors_header import TYPES, malformed, read_entries

DTYPES = {name: getattr(torch, name) for name, _ in TYPES.values()}


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
    extents = tuple(
        Extent(name=e.name, dtype=DTYPES[e.dtype], shape=e.shape, start=e.start, end=e.end)
        for e in read_entries(path)
    )
    return Header(path=path, extents=extents)


def without(header: Header, is_skipped: Callable[[str], bool]) -> Header:
    """Return the header without the tensors of some names."""
    kept = tuple(extent for extent in header.extents if not is_skipped(extent.name))
    return Header(path=header.path, extents=kept)


def lazy_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a mapped file; their bytes are read when they are copied.

    Raises: ConfigError when the library finds what the header check has not.
    """
    try:
        with safe_open(str(header.path), framework="pt") as file:
            for extent in header.extents:
                yield extent.name, file.get_tensor(extent.name)
    except SafetensorError as error:
        raise malformed(header.path, str(error)) from error


def eager_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the file from its first to its last tensor at once, then yield them. For slow or remote
    disks.

    Raises: ConfigError when the file has become shorter since its header was read.
    """
    first = min((e.start for e in header.extents), default=0)
    content = bytearray(max((e.end for e in header.extents), default=0) - first)
    with header.path.open("rb") as file:
        file.seek(first)
        if file.readinto(content) < len(content):
            raise malformed(header.path, "it was cut while it was read")
    for extent in header.extents:
        yield extent.name, _view(content, extent, first)


def _view(content: bytearray, extent: Extent, first: int) -> torch.Tensor:
    """Return the tensor in the file's bytes from `first` on, copied only where it is not
    aligned."""
    num_bytes = extent.end - extent.start
    if num_bytes == 0:
        return torch.empty(extent.shape, dtype=extent.dtype)
    start = extent.start - first
    raw = torch.frombuffer(content, dtype=torch.uint8, offset=start, count=num_bytes)
    if raw.data_ptr() % extent.dtype.itemsize:
        raw = raw.clone()
    return raw.view(extent.dtype).view(extent.shape)
