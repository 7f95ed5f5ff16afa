"""Ahead: threads that read weight files into the page cache before their tensors are needed.

They read the bytes after the caller's position, never more than a few files ahead, and skip what is
cached already. They store nothing in the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

DEFAULT_THREADS = 2
SPAN_BYTES = 64 * 2**20
"""How much one thread reads in one piece: several can work on one large file."""
CHUNK_BYTES = 2**20


class Reach(Protocol):
    """Learns from the code that converts tensors how far it has come."""

    def __call__(self, index: int) -> None:
        """Begin to read the files from `index` on, as many as there are threads."""


Spans = Mapping[Path, Sequence[tuple[int, int]]]
"""The parts of files that are wanted: (first byte, bytes)."""


@contextmanager
def reading_ahead(
    files: Sequence[Path], num_threads: int | None, wanted: Spans | None = None
) -> Iterator[Reach]:
    """Give a Reach over `files`, entire or only the `wanted` parts; leaving the block ends its
    threads within one chunk."""
    count = num_threads or DEFAULT_THREADS
    stop = threading.Event()
    with ThreadPoolExecutor(count, thread_name_prefix="read-ahead") as pool:
        begun = iter(files)
        num_begun = 0

        def reach(index: int) -> None:
            nonlocal num_begun
            while num_begun < min(index + count, len(files)):
                path = next(begun)
                num_begun += 1
                parts = [(0, path.stat().st_size)] if wanted is None else wanted[path]
                for first, num_bytes in parts:
                    for start in range(first, first + num_bytes, SPAN_BYTES):
                        size = min(SPAN_BYTES, first + num_bytes - start)
                        pool.submit(read_span, path, start, size, stop)

        try:
            yield reach
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def read_span(path: Path, start: int, num_bytes: int, stop: threading.Event) -> None:
    """Read part of a file and forget it. A file that cannot be read is the reader's to report."""
    buffer = bytearray(CHUNK_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            for offset in range(start, start + num_bytes, CHUNK_BYTES):
                if stop.is_set():
                    return
                if not _is_cached(file.fileno(), offset):
                    os.preadv(file.fileno(), [buffer], offset)
    except OSError:
        return


def _is_cached(file: int, offset: int) -> bool:
    """Return whether the bytes at `offset` can be read without waiting; False if that is
    unknown."""
    try:
        return os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT) >= 0
    except (AttributeError, OSError):
        return False
