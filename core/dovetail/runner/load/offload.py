"""Offload: some of a model's blocks keep their weights in host memory and visit the device in turn.

A block's weights are copied to the device while the previous offloaded block runs, and their device
memory is freed right after the block has run: at most two visit at a time. Offloaded blocks are
spread evenly, so that a copy overlaps with the blocks between them. Weights are built in host
memory and reach the device one layer at a time to be repacked, so a model may be larger than the
device. Independent of models: a block is an entry of a module list that holds weights whose names
contain its number.

The floor: every step moves the offloaded bytes over the bus once. At 25 GB/s (PCIe 4) or 55 (PCIe
5) 10 GiB cost 430 or 195 ms a step, unless the step itself takes longer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dovetail.errors import ConfigError
from dovetail.layers.linear.placement import WeightHolder
from dovetail.runner.load.host_copies import HostCopies, as_bytes

log = logging.getLogger(__name__)

FLAG = "--cpu-offload-gb"
_NUMBER = re.compile(r"\.(\d+)\.")


class Courier(Protocol):
    """Runs copies in parallel to the device's work."""

    def send(self, copy: Callable[[], None]) -> Any:
        """Start copies once the work queued so far is done; return a handle to wait for."""

    def wait(self, sent: Any) -> None:
        """Make work queued from now on wait for copies."""


class HostCourier:
    """Copies synchronously: on the host, nothing runs in parallel."""

    def send(self, copy: Callable[[], None]) -> None:
        """Copy."""
        copy()

    def wait(self, sent: None) -> None:
        """Do nothing."""


class CudaCourier:
    """Copies on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def send(self, copy: Callable[[], None]) -> torch.cuda.Event:
        """Queue copies after the work queued so far, whose memory they may reuse."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copy()
            event = torch.cuda.Event()
            event.record(self._stream)
        return event

    def wait(self, sent: torch.cuda.Event) -> None:
        """Make the device's own stream wait."""
        torch.cuda.current_stream(self._device).wait_event(sent)


class Visitor:
    """The weights of one block. `pieces` are storages, their sizes and offsets in host memory."""

    def __init__(self, copies: HostCopies, courier: Courier) -> None:
        self.pieces: list[tuple[torch.UntypedStorage, int, int]] = []
        self.next: Visitor | None = None
        self._copies = copies
        self._courier = courier
        self._sent: Any = None
        self.is_there = False

    def fetch(self) -> None:
        """Start copying the weights to the device, unless they are there. Mutates: the weights"""
        if self.is_there:
            return
        self.is_there = True
        # Memory comes from the model's stream, so that it also returns there.
        for storage, size, _ in self.pieces:
            storage.resize_(size)
        self._sent = self._courier.send(self._copy)

    def _copy(self) -> None:
        for storage, _, start in self.pieces:
            self._copies.restore(start, as_bytes(storage))

    def enter(self, block: nn.Module, args: object) -> None:
        """Wait for the weights before the block runs, and start copying the next block's."""
        self.fetch()
        self._courier.wait(self._sent)
        if self.next is not None:
            self.next.fetch()

    def leave(self, block: nn.Module, args: object, out: object) -> None:
        """Release the memory after the block has run, for work that is queued later."""
        self.is_there = False
        for storage, _, _ in self.pieces:
            storage.resize_(0)


class Offload:
    """The part of one model in host memory: blocks of `max_bytes` in total, or one more. The model
    has `num_blocks`, numbered from `first` on."""

    def __init__(
        self, max_bytes: int, num_blocks: int, device: torch.device, *, first: int = 0
    ) -> None:
        self._max_bytes = max_bytes
        self._num_blocks = num_blocks
        self._first = first
        self._device = device
        self._first_bytes = 0
        self._chosen: frozenset[int] | None = None
        self._number_of: dict[WeightHolder, int] = {}
        self._copies = HostCopies(pins=device.type == "cuda")
        self._courier = CudaCourier(device) if device.type == "cuda" else HostCourier()
        self._visitors: dict[int, Visitor] = {}

    @property
    def num_bytes(self) -> int:
        """Return the bytes in host memory."""
        return self._copies.num_bytes

    @contextmanager
    def building(self) -> Iterator[None]:
        """Place the weights of a model built inside the with block, as they are created.

        The first block stays on the device and gives the size of a block. Mutates: self
        """
        hook = register_module_parameter_registration_hook(self._place)
        try:
            yield
        finally:
            hook.remove()
        if not self._number_of:
            raise ConfigError(
                "no layer of this model can stay in host memory.",
                where=FLAG,
                fix="leave the flag out, or use more devices.",
            )

    def _place(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        """Move a parameter being registered to the host if its block is offloaded. Mutates: self"""
        number = _block_number(module)
        if number is None or parameter is None:
            return
        if number == self._first:
            self._first_bytes += parameter.nbytes
            return
        if self._chosen is None:
            self._chosen = self._choose()
        if number in self._chosen:
            self._number_of[cast(WeightHolder, module)] = number
            parameter.data = parameter.data.cpu()

    def _choose(self) -> frozenset[int]:
        """Return the numbers of the blocks to offload, spread evenly after the first."""
        others = self._num_blocks - 1
        wanted = -(-self._max_bytes // max(1, self._first_bytes))
        count = min(wanted, others)
        if count < wanted:
            log.info("%s: all %d blocks but the first stay in host memory", FLAG, others)
        second = self._first + 1
        return frozenset(second + (2 * i + 1) * others // (2 * count) for i in range(count))

    def finish(self, holder: WeightHolder) -> None:
        """Let a filled layer repack its weights on the device, then move them to host memory.

        Mutates: holder, self
        """
        number = self._number_of.get(holder)
        if number is None:
            holder.finish()
            return
        with torch.inference_mode(False):
            for parameter in holder.parameters():
                parameter.data = parameter.data.to(self._device)
        holder.finish()
        visitor = self._visitors.setdefault(number, Visitor(self._copies, self._courier))
        for storage in _storages(holder):
            size, start = storage.nbytes(), self._copies.add(as_bytes(storage))
            storage.resize_(0)
            visitor.pieces.append((storage, size, start))

    def attach(self, model: nn.Module) -> None:
        """Register hooks that fetch a block's weights before it runs and release them after.
        Mutates: model"""
        blocks = self._blocks(model)
        for place, (block, visitor) in enumerate(blocks):
            visitor.next = blocks[(place + 1) % len(blocks)][1] if len(blocks) > 1 else None
            block.register_forward_pre_hook(visitor.enter)
            block.register_forward_hook(visitor.leave)
        log.info(
            "%.2f GiB of weights in %d of %d blocks stay in host memory",
            self.num_bytes / 2**30,
            len(blocks),
            self._num_blocks,
        )

    def _blocks(self, model: nn.Module) -> Sequence[tuple[nn.Module, Visitor]]:
        """Return the offloaded blocks in execution order."""
        blocks: list[tuple[nn.Module, Visitor]] = []
        missing = dict(self._visitors)
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        for block in (block for one in lists for block in one):
            inside = {
                self._number_of.get(m) for m in block.modules() if isinstance(m, WeightHolder)
            }
            blocks += [(block, missing.pop(n)) for n in inside if n is not None and n in missing]
        assert not missing, f"weights of blocks {sorted(missing)} would never come back"
        return blocks


def _block_number(module: nn.Module) -> int | None:
    """Return the number of the block that a layer belongs to; None if it belongs to none."""
    if not isinstance(module, WeightHolder):
        return None
    found = _NUMBER.search(f"{vars(module).get('name', '')}.")
    return int(found.group(1)) if found else None


def _storages(holder: nn.Module) -> list[torch.UntypedStorage]:
    """Return the distinct storages of a layer's weights that are on the device."""
    tensors = (*holder.parameters(), *holder.buffers())
    found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return [storage for storage in found.values() if storage.nbytes()]
