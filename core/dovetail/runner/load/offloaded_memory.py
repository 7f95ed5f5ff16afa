"""Offloaded memory: releases and restores the storage of tensors while the tensors stay valid.

On a CPU the pages go back to the system. Addresses stay, so a recorded step, say, remains valid;
saved content goes to an unnamed temporary file. On other devices the storages are resized to zero
and saved content goes to host memory, pinned if possible; addresses change.
Source: madvise(2), MADV_DONTNEED.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import torch

from dovetail.errors import RequestError
from dovetail.runner.load.host_copies import HostCopies, as_bytes

log = logging.getLogger(__name__)

MADV_DONTNEED = 4


class OffloadedMemory(ABC):
    """Released memory: `num_bytes` went back to the system or the device."""

    num_bytes: int

    @abstractmethod
    def restore(self) -> None:
        """Take the memory again, with its content if that was saved. May be retried after a
        failure.

        Raises: RequestError when there is too little. Mutates: the tensors' content
        """

    def forget(self) -> None:
        """Drop the saved content: the memory will not be restored. May be called twice."""


def offload(tensors: Iterable[torch.Tensor], *, keeps: bool) -> OffloadedMemory:
    """Release the memory of tensors; `keeps`: save its content.

    Raises: RequestError when the content cannot be saved; then nothing has changed.
    """
    storages = _storages(tensors)
    if all(storage.device.type == "cpu" for storage in storages):
        return OffloadedPages(storages, keeps=keeps)
    return OffloadedStorages(storages, keeps=keeps)


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Return the distinct storages of tensors."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage
    return list(found.values())


class OffloadedPages(OffloadedMemory):
    """Whole pages of host memory, returned to the system."""

    def __init__(self, storages: Sequence[torch.UntypedStorage], *, keeps: bool) -> None:
        self._storages = storages  # keeps their addresses reserved
        self._spans = [_whole_pages(storage) for storage in storages]
        self._file = self._written() if keeps else None
        self.num_bytes = sum(size for address, size in self._spans if _release(address, size))

    def _written(self) -> BinaryIO:
        file = tempfile.TemporaryFile(prefix="dovetail-", buffering=0)  # noqa: SIM115  (stays open)
        try:
            for address, size in self._spans:
                _write(file, memoryview(_bytes_at(address, size)).cast("B"))
        except OSError as error:
            file.close()
            raise RequestError(
                f"the weights could not be written to {tempfile.gettempdir()}: {error}.",
                fix="set TMPDIR to a folder with more space, or use level 2.",
                status=507,
            ) from error
        return file

    def restore(self) -> None:
        """Read the saved content; pages come back as they are touched."""
        if self._file is None:
            return
        self._file.seek(0)
        for address, size in self._spans:
            _read(self._file, memoryview(_bytes_at(address, size)).cast("B"))
        self.forget()

    def forget(self) -> None:
        """Close the file with the saved content."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _whole_pages(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return (address, size) of the pages that lie entirely within a storage."""
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    return start, max(0, end - start)


def _bytes_at(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * size).from_address(address)


def _release(address: int, size: int) -> bool:
    """Return whether the system took the pages. It refuses locked ones, for example."""
    if not size:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_DONTNEED) == 0:
        return True
    log.warning("%d bytes stay in memory: %s", size, os.strerror(ctypes.get_errno()))
    return False


def _write(file: BinaryIO, content: memoryview) -> None:
    while content:
        content = content[file.write(content) :]


def _read(file: BinaryIO, room: memoryview) -> None:
    while room:
        count = file.readinto(room)  # type: ignore[attr-defined]
        if not count:
            raise OSError("the file of the weights has become shorter")
        room = room[count:]


class OffloadedStorages(OffloadedMemory):
    """Storages of a device with separate memory, resized to zero bytes."""

    def __init__(self, storages: Sequence[torch.UntypedStorage], *, keeps: bool) -> None:
        self._device = storages[0].device
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # other streams may still write to them
        self._sizes = [storage.nbytes() for storage in storages]
        self._missing = list(zip(storages, self._sizes, strict=True))[::-1]
        self._kept: HostCopies | None = None
        if keeps:
            self._kept = HostCopies(pins=any(s.device.type == "cuda" for s in storages))
            for storage in storages:
                self._kept.add(as_bytes(storage))
        self._done = 0
        self.num_bytes = sum(self._sizes)
        for storage in storages:
            storage.resize_(0)

    def restore(self) -> None:
        """Take the memory and copy the saved content."""
        while self._missing:
            storage, size = self._missing[-1]
            try:
                storage.resize_(size)
            except RuntimeError as error:
                raise RequestError(
                    f"the device has no free memory for {size} bytes: {error}",
                    fix="free its memory and wake the engine up again.",
                    status=503,
                ) from error
            if self._kept is not None:
                self._kept.restore(self._done, as_bytes(storage))
            self._done += size
            self._missing.pop()
        if self._kept is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the copies are still being read
        self._kept = None
