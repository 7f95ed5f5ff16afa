"""HostBlockStorage: host memory for KV blocks of preempted requests until they run again.

A host block holds the content of one block id in every KV tensor, tensor after tensor. Blocks are
gathered on the device into pieces of at most `PIECE_BYTES` and copied from there, so that copies
are long whatever the blocks' order. On a GPU the host memory is pinned and nothing waits for the
copies: they and the steps run in the order of their calls. Host memory is allocated on first use.

The floor: a swapped block of B bytes moves B over the bus, and the gathering reads and writes it
once more on the device. At 3 to 5 TB/s that is a hundredth of the time of a 25 to 55 GB/s bus.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import torch

from dovetail.interfaces.data.step import KVLayout, StepPlan
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import RunnerPart

log = logging.getLogger(__name__)

PIECE_BYTES = 32 << 20
SLAB_BYTES = 256 << 20
"""Size of host allocations, a power of two: torch rounds pinned ones up."""

Pairs = Sequence[tuple[int, int]]


class HostBlockStorage:
    """The host blocks of one rank. `tensors` are the KV tensors as blocks of bytes.

    Shapes: each of `tensors` [num_blocks, block_bytes] uint8
    """

    def __init__(self, layout: KVLayout, tensors: Sequence[torch.Tensor]) -> None:
        self._unit = torch.int64 if layout.block_bytes % 8 == 0 else torch.uint8
        self._tensors = [tensor.view(self._unit) for tensor in tensors]
        self._width = layout.block_bytes // self._unit.itemsize
        row_bytes = max(1, len(self._tensors) * layout.block_bytes)
        self._piece_blocks = max(1, PIECE_BYTES // row_bytes)
        self._slab_blocks = max(1, min(SLAB_BYTES // row_bytes, layout.num_host_blocks))
        self._slabs: dict[int, torch.Tensor] = {}

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks to host blocks; `pairs` are (block, host block). Mutates: host memory"""
        for piece in self._pieces(sorted(pairs, key=lambda pair: pair[1])):
            index = self._index([block for block, _ in piece])
            staged = self._staging(len(piece))
            for i, tensor in enumerate(self._tensors):
                staged[:, i] = tensor.index_select(0, index)
            for first, host in self._runs([host for _, host in piece]):
                host.copy_(staged[first : first + len(host)], non_blocking=True)

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to blocks; `pairs` are (host block, block). Mutates: the KV tensors"""
        for piece in self._pieces(sorted(pairs)):
            index = self._index([block for _, block in piece])
            staged = self._staging(len(piece))
            for first, host in self._runs([host for host, _ in piece]):
                staged[first : first + len(host)].copy_(host, non_blocking=True)
            for i, tensor in enumerate(self._tensors):
                tensor.index_copy_(0, index, staged[:, i])

    def _pieces(self, pairs: Pairs) -> Iterator[Pairs]:
        for start in range(0, len(pairs), self._piece_blocks):
            yield pairs[start : start + self._piece_blocks]

    def _index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks).to(self._tensors[0].device, non_blocking=True)

    def _staging(self, num_blocks: int) -> torch.Tensor:
        """Return device memory for some blocks. Shapes: [blocks, tensors, units]"""
        shape = (num_blocks, len(self._tensors), self._width)
        return torch.empty(shape, dtype=self._unit, device=self._tensors[0].device)

    def _runs(self, hosts: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each run of consecutive host blocks in ascending `hosts`: its first index, and its
        memory. Shapes: [blocks, tensors, units]"""
        first = 0
        for i in range(1, len(hosts) + 1):
            is_end = i == len(hosts) or hosts[i] != hosts[i - 1] + 1
            if is_end or hosts[i] % self._slab_blocks == 0:
                number, start = divmod(hosts[first], self._slab_blocks)
                yield first, self._slab(number)[start : start + i - first]
                first = i

    def _slab(self, number: int) -> torch.Tensor:
        if number not in self._slabs:
            self._slabs[number] = self._new_slab()
        return self._slabs[number]

    def _new_slab(self) -> torch.Tensor:
        shape = (self._slab_blocks, len(self._tensors), self._width)
        if self._tensors[0].device.type != "cuda":
            return torch.empty(shape, dtype=self._unit)
        try:
            return torch.empty(shape, dtype=self._unit, pin_memory=True)
        except RuntimeError as error:
            log.warning(
                "host memory for swapped KV blocks is not pinned, so copies are slow: %s", error
            )
            return torch.empty(shape, dtype=self._unit)


class SwappedBlocks(RunnerPart):
    """The host blocks of a runner, if its layout has any."""

    def allocate(self, storage: Allocated) -> None:
        """Store blocks of these KV tensors from now on. Mutates: self"""
        self._storage = HostBlockStorage(storage.layout, storage.tensors)

    def before(self, plan: StepPlan) -> None:
        """Copy blocks to and from the host. Mutates: the KV tensors, host memory"""
        if plan.swapped_out or plan.swapped_in:
            self._storage.swap_out(plan.swapped_out)
            self._storage.swap_in(plan.swapped_in)

    def release(self) -> Sequence[torch.Tensor]:
        """Release the host memory. Mutates: self"""
        del self._storage
        return ()
