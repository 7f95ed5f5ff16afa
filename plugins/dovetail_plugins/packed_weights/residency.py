"""Parts of an entry's file that are read into memory in place of their mapping, and released again.

A part has one address all the time, and the same bytes are found there: mapped, the system reads
them page by page when they are used; resident, they are this process's own memory, which was read
past the page cache and compared with its checksum. So what was not made resident is slower, never
wrong. Linux only: it replaces pages of a mapping by mmap and mremap.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dovetail.errors import DovetailError
from dovetail_plugins.packed_weights.entry_file import Damaged, Place

_PRIVATE, _FIXED, _ANONYMOUS = 0x02, 0x10, 0x20
_MAY_MOVE, _REMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_RANDOM = 1


class WeightsChanged(DovetailError):
    """The file of a model that runs from disk was changed while it was in use."""


class Residency:
    """The file of an entry, parts of which become resident. Threads may call it for different
    places at a time."""

    def __init__(self, descriptor: int, path: str) -> None:
        """`descriptor` is closed with this object; `path` is for people."""
        self._descriptor, self._path = descriptor, path
        self._facts: tuple[int, int] | None = None
        self._direct = _direct(descriptor)
        opened = [one for one in (descriptor, self._direct) if one is not None]
        self.close = weakref.finalize(self, _close, opened)
        """Closes the file; what is resident stays so. May be called twice."""

    def check(self) -> None:
        """Compare the file with what it was at the first call, when it is finished. Raises:
        WeightsChanged"""
        facts = os.fstat(self._descriptor)
        current = facts.st_size, facts.st_mtime_ns
        self._facts = self._facts or current
        if current != self._facts:
            raise self._changed("its size or time of change is another one")

    def read(self, place: Place) -> None:
        """Make a place with pages of its own resident. Mutates: the mapping, not its bytes

        Raises: WeightsChanged; MemoryError
        """
        size = _whole_pages(place.num_bytes)
        scratch = _map(None, size, _PRIVATE | _ANONYMOUS, -1, 0)
        try:
            buffer = (ctypes.c_char * size).from_address(scratch)
            self._fill(memoryview(buffer).cast("B"), place)
            place.check(torch.frombuffer(buffer, dtype=torch.uint8))
            _move(scratch, size, place.address)
        except BaseException as error:
            _libc().munmap(scratch, size)
            if isinstance(error, Damaged | OSError):
                raise self._changed(str(error)) from error
            raise

    def release(self, place: Place) -> None:
        """Map a place again; its memory is free then. Mutates: the mapping, not its bytes"""
        size = _whole_pages(place.num_bytes)
        _map(place.address, size, _PRIVATE | _FIXED, self._descriptor, place.start)

    def expect_single_pages(self, place: Place) -> None:
        """Let the system read no more than the pages that are used of a mapped place: a table of
        which a few rows are looked up."""
        _libc().madvise(place.address, _whole_pages(place.num_bytes), _RANDOM)

    def _fill(self, buffer: memoryview, place: Place) -> None:
        """Read a place's bytes. Raises: OSError; Damaged if the file ends before"""
        direct = self._direct
        descriptor = self._descriptor if direct is None else direct
        done = 0
        while done < place.num_bytes:
            count = os.preadv(descriptor, [buffer[done:]], place.start + done)
            done += count
            if not count or (count % mmap.PAGESIZE and done < place.num_bytes):
                raise Damaged(f"it ends within {place.name}")
        if direct is None:
            os.posix_fadvise(descriptor, place.start, len(buffer), os.POSIX_FADV_DONTNEED)

    def _changed(self, what: str) -> WeightsChanged:
        """Remove the entry, unless another one has its name by now, and return the error."""
        with contextlib.suppress(OSError):  # it is gone, or on a read-only disk
            if os.path.samestat(Path(self._path).stat(), os.fstat(self._descriptor)):
                Path(self._path).unlink()
        return WeightsChanged(
            f"the packed weights were changed while the model ran from them: {what}.",
            where=self._path,
            fix="start again: the entry was removed, and is packed anew.",
        )


def reason_against() -> str | None:
    """Return why nothing becomes resident on this machine; None if it does."""
    if not sys.platform.startswith("linux"):
        return "only Linux replaces pages of a mapping"
    return None


def _direct(descriptor: int) -> int | None:
    """Return a descriptor of the same file that reads past the page cache, None if the file system
    has none."""
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
    return None


def _close(descriptors: Sequence[int]) -> None:
    for one in descriptors:
        os.close(one)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@cache
def _libc() -> Any:
    """Return the C library with the calls that are used here."""
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = libc.mremap.restype = address
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_int64]
    libc.mremap.argtypes = [address, size, size, number, address]
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = [address, size, number]
    return libc


def _map(address: int | None, size: int, flags: int, descriptor: int, start: int) -> int:
    """Return new mapped memory that can be read and written. Raises: MemoryError"""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found = _libc().mmap(address, size, access, flags, descriptor, start)
    if found is None or found == _FAILED:
        raise MemoryError(f"{size} bytes were not mapped: {os.strerror(ctypes.get_errno())}")
    return int(found)


def _move(scratch: int, size: int, address: int) -> None:
    """Put memory in the place of what is mapped at an address. Raises: MemoryError"""
    found = _libc().mremap(scratch, size, size, _MAY_MOVE | _REMAP_FIXED, address)
    if found is None or found == _FAILED:
        raise MemoryError(f"{size} bytes were not moved: {os.strerror(ctypes.get_errno())}")
