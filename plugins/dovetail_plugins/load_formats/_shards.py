"""Safetensors shards one after the other: all headers checked first, the next file read ahead.

Shared by all formats that put tensors into safetensors files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.load_formats import _safetensors_file as single
from dovetail_plugins.load_formats._ahead import reading_ahead
from dovetail_plugins.load_formats._files import ByteCount

Tensors = Iterator[tuple[str, torch.Tensor]]
FileReader = Callable[[single.Header], Tensors]
READERS: dict[str, FileReader] = {"lazy": single.lazy_tensors, "eager": single.eager_tensors}


def read_shards(files: Sequence[Path], checkpoint: Checkpoint, read: FileReader) -> Tensors:
    """Yield every tensor of the files once, except skipped ones, whose bytes are not read.

    Raises: ConfigError before the first if any file is bad.
    """
    headers = wanted_headers(checked_headers(files), checkpoint)
    count = ByteCount(checkpoint.progress, sum(h.data_bytes for h in headers))
    wanted = {header.path: spans(header) for header in headers}
    with reading_ahead(list(wanted), checkpoint.num_workers, wanted) as reach:
        for index, header in enumerate(headers):
            reach(index)
            for name, tensor in read(header):
                yield name, tensor
                count.add(tensor.nbytes)


def checked_headers(files: Sequence[Path]) -> list[single.Header]:
    """Return the headers of the files. Raises: ConfigError if one is bad or two share a tensor."""
    headers = [single.read_header(path) for path in files]
    check_distinct(headers)
    return headers


def wanted_headers(headers: Sequence[single.Header], checkpoint: Checkpoint) -> list[single.Header]:
    """Return the headers without the tensors that are skipped, and those that are not empty."""
    if checkpoint.is_skipped is None:
        return [*headers]
    remaining = [single.without(header, checkpoint.is_skipped) for header in headers]
    return [header for header in remaining if header.extents]


def spans(header: single.Header) -> list[tuple[int, int]]:
    """Return the spans of the header's tensors in its file: (first byte, bytes), without gaps."""
    merged: list[tuple[int, int]] = []
    for extent in sorted(header.extents, key=lambda e: e.start):
        first, num_bytes = merged[-1] if merged else (extent.start, 0)
        if merged and extent.start <= first + num_bytes:
            merged[-1] = (first, max(num_bytes, extent.end - first))
        else:
            merged.append((extent.start, extent.end - extent.start))
    return merged


def check_distinct(headers: Sequence[single.Header]) -> None:
    """Raises: ConfigError when two files hold the same tensor."""
    owners: dict[str, str] = {}
    for header in headers:
        for extent in header.extents:
            other = owners.setdefault(extent.name, header.path.name)
            if other != header.path.name:
                raise ConfigError(
                    f'tensor "{extent.name}" is also in {other}',
                    where=str(header.path),
                    fix="remove one of the files, or name it in --ignore-patterns.",
                )
