"""FromDisk: which weights of a model that is larger than memory are resident, while it runs.

What runs in every step (attention, dense layers, heads) is made resident first and stays; blocks
for which there is no room are read while the block before them runs, and released after it. Experts
are read when they are chosen, all of a layer at a time, and those that were chosen most often of
late stay. The bound follows the memory that is free, step by step. Whatever is not resident is
mapped, so the result is the same in any case (see residency).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from dovetail.config.rules.machine.platform import available_bytes, memory_limit_bytes
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_plugins.packed_weights.bounds import EXPERTS_SHARE, NUM_READERS, margin_bytes
from dovetail_plugins.packed_weights.entry_file import Place
from dovetail_plugins.packed_weights.owners import drop_buffers, owners
from dovetail_plugins.packed_weights.residency import Residency

log = logging.getLogger(__name__)

HALF_LIFE_STEPS = 4.0
"""After so many steps a choice of an expert counts half: benchmarks/expert_choices.py."""
_LARGEST_USE = 1e100


@dataclass(eq=False, slots=True)
class Unit:
    """What is read and released together: the dense weights of a block, or an expert's matrices.
    `stays`: it is not released after its block. `reads`: those that were begun."""

    number: int
    is_dense: bool
    places: list[Place] = field(default_factory=list)
    is_resident: bool = False
    stays: bool = False
    reads: list[Future[None]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its places."""
        return sum(place.num_bytes for place in self.places)


@dataclass(slots=True)
class Counts:
    """Experts that were chosen, those of them that were resident, and all bytes that were read."""

    chosen: int = 0
    resident: int = 0
    read_bytes: int = 0


class FromDisk:
    """Follows the passes of one model, from one thread at a time."""

    def __init__(self, residency: Residency, places: Sequence[Place], num_ranks: int) -> None:
        """`num_ranks`: ranks on this machine, which share its free memory."""
        self._residency, self._num_ranks = residency, num_ranks
        self._places = places
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="weights-from-disk")
        self._units: list[Unit] = []
        self._outside = self._new_unit(is_dense=True)
        self._lists: dict[str, dict[nn.Module, Unit]] = {}
        self._experts: dict[nn.Module, list[Unit]] = {}
        self._bound_bytes = self._resident_bytes = 0
        self._dense_resident_bytes = self._staying_bytes = 0
        self._use = 1.0
        self.counts = Counts()

    def attach(self, model: nn.Module) -> None:
        """Follow a model that was loaded. Mutates: the model's hooks"""
        movable = [place for place in self._places if place.has_own_pages]
        for place, owner in owners(model, movable):
            if owner.slot is not None:
                self._expert(owner.module, owner.slot).places.append(place)
            elif owner.block is not None:
                blocks = self._lists.setdefault(owner.list_name, {})
                if owner.block not in blocks:
                    blocks[owner.block] = self._new_unit(is_dense=True)
                blocks[owner.block].places.append(place)
            elif owner.is_table:
                self._residency.expect_single_pages(place)
            else:
                self._outside.places.append(place)
        drop_buffers(model, self._places)
        self._scores = np.zeros(len(self._units))
        self._may_go = np.zeros(len(self._units), dtype=bool)
        dense = [unit.num_bytes for row in self._lists.values() for unit in row.values()]
        self._dense_bytes, self._largest = (
            sum(dense) + self._outside.num_bytes,
            max(dense, default=0),
        )
        for row in self._lists.values():
            self._follow(list(row.items()))
        for module in self._experts:
            module.register_forward_pre_hook(self._choose)
        expert_bytes = sum(u.num_bytes for units in self._experts.values() for u in units)
        log.info(
            "weights are read from disk while it runs: %d MiB of dense layers, %d of experts",
            self._dense_bytes >> 20,
            expert_bytes >> 20,
        )

    def _new_unit(self, *, is_dense: bool) -> Unit:
        self._units.append(Unit(len(self._units), is_dense))
        return self._units[-1]

    def _expert(self, module: nn.Module, slot: int) -> Unit:
        units = self._experts.setdefault(module, [])
        while len(units) <= slot:
            units.append(self._new_unit(is_dense=False))
        return units[slot]

    def _follow(self, blocks: Sequence[tuple[nn.Module, Unit]]) -> None:
        """Follow the blocks of a list, which run in their order. Mutates: the blocks' hooks"""
        first, last = blocks[0][0], blocks[-1][0]
        first.register_forward_pre_hook(self._begin_pass)
        for number, (block, unit) in enumerate(blocks):
            following = blocks[(number + 1) % len(blocks)][1]
            block.register_forward_pre_hook(partial(self._enter, unit=unit, following=following))
            block.register_forward_hook(partial(self._leave, unit=unit))
        last.register_forward_hook(self._end_pass)

    def _begin_pass(self, block: nn.Module, args: object) -> None:
        """Adapt to the free memory. Raises: WeightsChanged"""
        refuse_recording("weights are read from disk while the model runs")
        self._residency.check()
        self._use *= 2 ** (1 / HALF_LIFE_STEPS)
        if self._use > _LARGEST_USE:
            self._scores /= self._use
            self._use = 1.0
        room = available_bytes() // self._num_ranks - _margin_bytes()
        self._bound_bytes = max(0, self._resident_bytes + room)
        self._has_room(0)
        for unit in reversed(self._units):
            if self._resident_bytes <= self._bound_bytes:
                break
            if unit.is_resident:
                self._wait(unit)
                self._release(unit)
        self._begin_dense(self._outside)

    def _end_pass(self, block: nn.Module, args: object, out: object) -> None:
        """Compare the file before anything is made of what was computed. Raises: WeightsChanged"""
        self._residency.check()

    def _enter(self, block: nn.Module, args: object, *, unit: Unit, following: Unit) -> None:
        """Have a block's dense weights resident, and begin to read the next block's."""
        self._begin_dense(unit)
        self._wait(unit)
        self._begin_dense(following)

    def _leave(self, block: nn.Module, args: object, out: object, *, unit: Unit) -> None:
        """Release a block's dense weights, if there is no room for them to stay."""
        if unit.is_resident and not unit.stays:
            self._wait(unit)
            self._release(unit)

    def _begin_dense(self, unit: Unit) -> None:
        """Begin to read dense weights that are not resident, where there is room."""
        if unit.is_resident or not unit.places:
            return
        limit = self._dense_limit()
        if self._dense_bytes > limit:
            limit -= 2 * self._largest
        unit.stays = self._staying_bytes + unit.num_bytes <= limit
        if self._has_room(unit.num_bytes):
            self._begin(unit)

    def _dense_limit(self) -> int:
        """Return the bytes of dense weights that may be resident."""
        return int(self._bound_bytes * (1 - EXPERTS_SHARE if self._experts else 1))

    def _choose(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Have chosen experts resident; those for which there is no room stay mapped.
        Shapes: args[2] [T, A] numbers of experts"""
        units = self._experts[module]
        chosen = [units[n] for n in torch.unique(args[2]).tolist() if 0 <= n < len(units)]
        numbers = [unit.number for unit in chosen]
        self._scores[numbers] += self._use
        self._may_go[numbers] = False
        self.counts.chosen += len(chosen)
        self.counts.resident += sum(unit.is_resident for unit in chosen)
        dense_bytes = min(self._dense_bytes, self._dense_limit())
        reserved = max(0, dense_bytes - self._dense_resident_bytes)
        for unit in chosen:
            if not unit.is_resident and self._has_room(unit.num_bytes + reserved):
                self._begin(unit)
        for unit in chosen:
            self._wait(unit)
            self._may_go[unit.number] = unit.is_resident

    def _has_room(self, num_bytes: int) -> bool:
        """Release experts, those chosen least of late first, until there is room for so many bytes;
        return whether there is. Mutates: self"""
        while self._resident_bytes + num_bytes > self._bound_bytes:
            number = int(np.where(self._may_go, self._scores, np.inf).argmin())
            if not self._may_go[number]:
                return False
            self._release(self._units[number])
        return True

    def _begin(self, unit: Unit) -> None:
        """Begin to read a unit. Mutates: self"""
        unit.is_resident = True
        self._resident_bytes += unit.num_bytes
        self._dense_resident_bytes += unit.num_bytes * unit.is_dense
        self._staying_bytes += unit.num_bytes * unit.stays
        self.counts.read_bytes += unit.num_bytes
        unit.reads = [self._readers.submit(self._residency.read, one) for one in unit.places]

    def _wait(self, unit: Unit) -> None:
        """Wait until a unit is read; it stays mapped where the system has no memory for it.
        Raises: WeightsChanged"""
        reads, unit.reads = unit.reads, []
        try:
            for one in reads:
                one.result()
        except MemoryError as error:
            log.warning("some weights stay mapped: %s", error)
            self._release(unit)

    def _release(self, unit: Unit) -> None:
        """Map a unit again. Mutates: self"""
        for place in unit.places:
            self._residency.release(place)
        self._resident_bytes -= unit.num_bytes
        self._dense_resident_bytes -= unit.num_bytes * unit.is_dense
        self._staying_bytes -= unit.num_bytes * unit.stays
        unit.is_resident, unit.stays, self._may_go[unit.number] = False, False, False


def _margin_bytes() -> int:
    return margin_bytes(memory_limit_bytes() or psutil.virtual_memory().total)
