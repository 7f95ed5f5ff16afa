"""Blocks: memory for packed weights, one after the other on large pages.

A matrix of a small model is smaller than a large page, or takes a few of them and a fraction. With
a separate allocation, its remainder would be on small pages, and streaming it would wait for more
address translations. In a block weights share pages. Untouched pages cost nothing.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dovetail_kernels.cpu.library import Library

LARGE_PAGE_BYTES = 2 << 20
BLOCK_BYTES = 32 << 20
SCRATCH_BYTES = 256 << 20
"""More is not lent again: a model's largest matrix may take as much as its other layers."""
START_BYTES = 4096
"""Everything in a block starts on a small page, so that its pages can be returned separately."""


class Blocks:
    """Hands out memory of one block after the other. A block goes with the last tensor in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: weakref.ref[np.ndarray] | None = None
        self._used = 0

    def empty(self, num_bytes: int, library: Library) -> torch.Tensor:
        """Return uninitialised memory, uint8 of shape [num_bytes], which starts on a page."""
        size = -(-num_bytes // START_BYTES) * START_BYTES
        with self._lock:
            block = self._block() if self._block is not None else None
            if block is None or self._used + size > len(block):
                block, self._used = _new_block(max(size, BLOCK_BYTES), library), 0
                self._block = weakref.ref(block)
            lent = (ctypes.c_char * size).from_buffer(block.data, self._used)
            self._used += size
        return torch.frombuffer(lent, dtype=torch.uint8, count=num_bytes)


def _new_block(num_bytes: int, library: Library) -> np.ndarray:
    """Return memory that starts on a large page and asks for large pages."""
    memory = np.empty(num_bytes + LARGE_PAGE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % LARGE_PAGE_BYTES
    library.prefer_large_pages(memory.ctypes.data + start, num_bytes)
    return memory[start : start + num_bytes]


class Scratch:
    """Memory that is lent again when its last tensor is gone, within a with block of `reused`: the
    system clears new pages, which takes as long as writing them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._free: list[np.ndarray] = []
        self._num_bytes = 0

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Lend the same memory within a with block, and give it back after it. Mutates: self"""
        with self._lock:
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    self._give_back()

    def lend(self, num_bytes: int, library: Library) -> np.ndarray:
        """Return uninitialised memory on large pages: the smallest that is free, or new one."""
        with self._lock:
            if not self._depth or num_bytes > SCRATCH_BYTES:
                return _new_block(num_bytes, library)
            fitting = [number for number, one in enumerate(self._free) if len(one) >= num_bytes]
            if fitting:
                memory = self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
            else:
                if self._num_bytes + num_bytes > SCRATCH_BYTES:
                    self._give_back()
                memory = _new_block(num_bytes, library)
                self._num_bytes += num_bytes
        lent = memory[:num_bytes]
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return lent

    def _take_back(self, memory: np.ndarray) -> None:
        """Take memory whose last tensor is gone. It waits for no lock: garbage may be collected
        while this thread lends."""
        self._free.append(memory)
        if not self._depth:
            self._give_back()

    def _give_back(self) -> None:
        """Give the free memory back to the system."""
        while self._free:
            self._num_bytes -= len(self._free.pop())


def large_empty(num_bytes: int, library: Library) -> torch.Tensor:
    """Return uninitialised memory on large pages, for what is written once and dropped: on small
    ones the system's page faults take as long as the writing. Shapes: [num_bytes] uint8"""
    if num_bytes < LARGE_PAGE_BYTES:
        return torch.empty(num_bytes, dtype=torch.uint8)
    return torch.from_numpy(SCRATCH.lend(num_bytes, library))


BLOCKS = Blocks()
"""This process's blocks."""
SCRATCH = Scratch()
"""This process's memory for what is dropped soon."""
