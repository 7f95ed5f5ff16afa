"""MappedFile: a file's bytes as tensors that are read when they are copied."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import torch

from dovetail.errors import ConfigError


class MappedFile:
    """A file in memory. Writing to its tensors does not change the file.

    What has been read stays in this process's memory until `let_go`: a load that lets every tensor
    go has never the whole file and the model made of it in memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return bytes from `start` to `stop`, at least one. Shapes: [stop - start] uint8

        Raises: ConfigError if the file has become shorter.
        """
        if stop > len(self._mapped):
            raise ConfigError("the file became shorter while it was read.", where=str(self._path))
        return torch.frombuffer(self._mapped, dtype=torch.uint8, offset=start, count=stop - start)

    def let_go(self, start: int, stop: int) -> None:
        """Drop the whole pages of a range. One that is used later is read again from the file."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        size = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
        if size > 0 and sys.platform == "linux":
            self._mapped.madvise(mmap.MADV_DONTNEED, first, size)
