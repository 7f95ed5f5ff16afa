"""Copies: the matrices of one adapter, noted one by one and copied together.

Each note is a source and a target in the adapter's own memory, which is allocated once its size is
known. So a file's matrices have places before any of its numbers is read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dovetail.interfaces.adapter import AdapterContent
from dovetail.runner.lora.files import FileCopies
from dovetail.runner.lora.memory import AdapterMemory
from dovetail_kernels.op import REFERENCE
from dovetail_kernels.scaled_copy import NATIVE, OP
from dovetail_kernels.scaled_copy.native import ScaledCopies, Target

LINE_BYTES = 64
"""Matrices are aligned to cache lines."""


class MemorySlice(NamedTuple):
    """The place of a tensor in an adapter's memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor. Shapes: memory [numbers]"""
        return memory.as_strided(self.shape, self.strides, self.start)


class Copies:
    """Matrices to scale, convert to one dtype and copy into an adapter's memory of `size` numbers,
    with a check that they are finite. `content` is the file they are views of, if it is unread:
    call `look_at_numbers` before looking at values."""

    def __init__(
        self, dtype: torch.dtype, memory: AdapterMemory, content: AdapterContent | None = None
    ) -> None:
        self.dtype = dtype
        self._memory = memory
        self.size = 0
        self.prepared: FileCopies | None = None
        """The native library's copies out of the content, after it has run them."""
        self._content = content
        self._itemsize = dtype.itemsize
        self._line = LINE_BYTES // dtype.itemsize
        self._num_taken = 0
        self._sources: list[torch.Tensor] = []
        self._targets: list[Target] = []
        self._scales: list[float] = []
        self._where: list[str] = []

    @property
    def has_gaps(self) -> bool:
        """Return whether some of the memory is zeros that no copy fills."""
        return sum(source.numel() for source in self._sources) < self._num_taken

    def take(self, count: int) -> int:
        """Reserve room for `count` numbers; return where it begins. Mutates: self"""
        start = self.size + -self.size % self._line
        self.size = start + count
        self._num_taken += count
        return start

    def add(
        self, where: str, source: torch.Tensor, start: int, strides: tuple[int, int], scale: float
    ) -> None:
        """Note a copy to reserved room from `start` on. Shapes: source [A, B], strides (A's, B's).
        Mutates: self"""
        self._sources.append(source)
        self._targets.append((start * self._itemsize, *strides, self.dtype))
        self._scales.append(scale)
        self._where.append(where)

    def look_at_numbers(self) -> None:
        """Read the tensors' numbers if needed. Raises: ConfigError. Mutates: the content"""
        if self._content is not None:
            self._content.read()

    def carry_out(self) -> tuple[torch.Tensor, str | None]:
        """Copy all. Return the memory, and the source of the first matrix that is not finite in the
        target dtype, if any. Raises: ConfigError. Shapes: memory [size]. Mutates: self, the
        content"""
        memory = self._memory.take(self.size, self.dtype, is_filled=not self.has_gaps)
        given = {"sources": self._sources, "targets": [memory]}
        is_native = OP.runs(NATIVE.name, "cpu", self.dtype)
        if is_native and OP.why_not(NATIVE.name, given) is None:
            broken = self._carry_out(memory)
        else:
            self.look_at_numbers()
            targets = [self._of(memory, number) for number in range(len(self._sources))]
            run = OP.pick("cpu", self.dtype, name=REFERENCE)
            broken = int(run(self._sources, targets, self._scales))
        return memory, None if broken < 0 else self._where[broken]

    def _carry_out(self, memory: torch.Tensor) -> int:
        """Copy all with the native library; return the index of a matrix that is not finite, or -1.
        Mutates: self, memory, the content"""
        copies = ScaledCopies(self._sources, self._targets, self._scales)
        if self._content is not None:
            self.prepared = FileCopies.of(copies, self._content)
            if self.prepared is not None:
                return self.prepared.carry_out(self._content, memory.data_ptr())
        self.look_at_numbers()
        return copies(target_shift=memory.data_ptr())

    def _of(self, memory: torch.Tensor, number: int) -> torch.Tensor:
        """Return the target view of one matrix."""
        address, row, column, _ = self._targets[number]
        shape = self._sources[number].shape
        return memory.as_strided(shape, (row, column), address // self._itemsize)
