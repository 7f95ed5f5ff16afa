"""FromDisk: which weights of a model that is larger than memory are resident, while it runs.

What runs in every step (attention, dense layers, heads) is made resident first and stays; blocks
for which there is no room are read while the block before them runs, and released after it. Experts
are read when they are chosen, all of a layer at a time, and those that were chosen most often of
late stay. The bound follows the memory that is free, step by step. Whatever is not resident is
mapped, so the result is the same in any case (see residency).
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from dovetail.config.rules.machine.platform import available_bytes, memory_limit_bytes
from dovetail.layers.decoder_head import HEAD
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.moe.experts import Experts
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_plugins.packed_weights.entry_file import Place
from dovetail_plugins.packed_weights.residency import Residency

log = logging.getLogger(__name__)

NUM_READERS = 4
HALF_LIFE_STEPS = 64.0
"""After so many steps a choice of an expert counts half."""
MARGIN_SHARE, MIN_MARGIN_BYTES, MAX_MARGIN_BYTES = 0.1, 96 << 20, 1 << 30
"""What stays free, as a share of all memory, and its bounds."""
EXPERTS_SHARE = 0.25
"""Dense layers leave this share of the memory to experts, if there are any."""
_SLOT = re.compile(r"_(\d+)_")


@dataclass(eq=False, slots=True)
class Unit:
    """What is read and released together: the dense weights of a block, or an expert's matrices.
    `stays`: it is not released after its block. `reads`: the reads that were begun."""

    number: int
    places: list[Place] = field(default_factory=list)
    is_resident: bool = False
    stays: bool = False
    reads: list[Future[None]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its places."""
        return sum(place.num_bytes for place in self.places)


@dataclass
class Counts:
    """Experts that were chosen, those of them that were resident, and all bytes that were read."""

    chosen: int = 0
    resident: int = 0
    read_bytes: int = 0


class FromDisk:
    """Follows the passes of one model, from one thread at a time."""

    def __init__(self, residency: Residency, places: Sequence[Place], num_ranks: int) -> None:
        self._residency, self._num_ranks = residency, num_ranks
        self._places = [place for place in places if place.has_own_pages]
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="weights-from-disk")
        self._units: list[Unit] = []
        self._experts: dict[nn.Module, list[Unit]] = {}
        self._bound_bytes = self._resident_bytes = self._staying_bytes = 0
        self._use = 1.0
        self.counts = Counts()

    def attach(self, model: nn.Module) -> None:
        """Follow a model that was loaded. Mutates: the model's hooks"""
        dense: dict[str, list[Unit]] = {}
        blocks: dict[nn.Module, Unit] = {}
        outside = self._unit()
        for place, owner in _owners(model, self._places):
            if owner.slot is not None:
                self._expert(owner.module, owner.slot).places.append(place)
            elif owner.block is not None:
                if owner.block not in blocks:
                    blocks[owner.block] = self._unit()
                    dense.setdefault(owner.list_name, []).append(blocks[owner.block])
                blocks[owner.block].places.append(place)
            elif owner.is_table:
                self._residency.expect_single_pages(place)
            else:
                outside.places.append(place)
        self._scores = np.zeros(len(self._units))
        self._may_go = np.zeros(len(self._units), dtype=bool)
        self._largest = max((unit.num_bytes for unit in blocks.values()), default=0)
        self._dense_bytes = sum(unit.num_bytes for unit in (*blocks.values(), outside))
        for block, unit in blocks.items():
            row = next(units for units in dense.values() if unit in units)
            place = row.index(unit)
            following = row[(place + 1) % len(row)]
            first, last = place == 0, place == len(row) - 1
            block.register_forward_pre_hook(
                partial(self._enter, unit=unit, following=following, outside=outside if first else None)
            )
            block.register_forward_hook(partial(self._leave, unit=unit, is_last=last))
        for module in self._experts:
            module.register_forward_pre_hook(self._choose)
        log.info("%s", self._summary())

    def _summary(self) -> str:
        expert_bytes = sum(u.num_bytes for units in self._experts.values() for u in units)
        return (
            f"weights are read from disk while the model runs: {self._dense_bytes >> 20} MiB of "
            f"dense layers, {expert_bytes >> 20} MiB of experts"
        )

    def _unit(self) -> Unit:
        self._units.append(Unit(len(self._units)))
        return self._units[-1]

    def _expert(self, module: nn.Module, slot: int) -> Unit:
        units = self._experts.setdefault(module, [])
        while len(units) <= slot:
            units.append(self._unit())
        return units[slot]

    def _enter(
        self, block: nn.Module, args: object, *, unit: Unit, following: Unit, outside: Unit | None
    ) -> None:
        """Have a block's dense weights resident, and begin to read the next block's."""
        refuse_recording("weights are read from disk while the model runs")
        if outside is not None:
            self._begin_pass()
            self._begin_dense(outside)
        self._begin_dense(unit)
        _wait(unit)
        self._begin_dense(following)

    def _leave(
        self, block: nn.Module, args: object, out: object, *, unit: Unit, is_last: bool
    ) -> None:
        """Release a block's dense weights, if there is no room for them to stay."""
        if unit.is_resident and not unit.stays:
            self._release(unit)
        if is_last:
            self._residency.check()

    def _begin_pass(self) -> None:
        """Adapt to the free memory. Raises: WeightsChanged"""
        self._residency.check()
        self._use *= 2 ** (1 / HALF_LIFE_STEPS)
        if self._use > 1e100:
            self._scores /= self._use
            self._use = 1.0
        room = available_bytes() // self._num_ranks
        self._bound_bytes = max(0, self._resident_bytes + room - _margin_bytes())
        self._has_room(0, ())
        for unit in reversed(self._units):
            if self._resident_bytes <= self._bound_bytes:
                break
            if unit.is_resident:
                _wait(unit)
                self._release(unit)

    def _begin_dense(self, unit: Unit) -> None:
        """Begin to read dense weights that are not resident, where there is room."""
        if unit.is_resident or not unit.places:
            return
        limit = self._bound_bytes * (1 - EXPERTS_SHARE if self._experts else 1)
        if self._dense_bytes > limit:
            limit -= 2 * self._largest
        unit.stays = self._staying_bytes + unit.num_bytes <= limit
        if self._has_room(unit.num_bytes, ()):
            self._staying_bytes += unit.num_bytes * unit.stays
            self._begin(unit)

    def _choose(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Have chosen experts resident; of those for which there is no room, the mapping is used."""
        units = self._experts[module]
        numbers = torch.unique(args[2]).tolist()
        chosen = [units[n] for n in numbers if 0 <= n < len(units)]
        for unit in chosen:
            self._scores[unit.number] += self._use
            self.counts.chosen += 1
            self.counts.resident += unit.is_resident
            self._may_go[unit.number] = False
        for unit in chosen:
            if not unit.is_resident and self._has_room(unit.num_bytes, ()):
                self._begin(unit)
        for unit in chosen:
            _wait(unit)
            self._may_go[unit.number] = unit.is_resident

    def _has_room(self, num_bytes: int, _: object) -> bool:
        """Release experts, those chosen least first, until so many bytes may be read; return
        whether they may. Mutates: self"""
        while self._resident_bytes + num_bytes > self._bound_bytes:
            scores = np.where(self._may_go, self._scores, np.inf)
            number = int(scores.argmin())
            if not self._may_go[number]:
                return False
            self._release(self._units[number])
        return True

    def _begin(self, unit: Unit) -> None:
        unit.is_resident = True
        self._resident_bytes += unit.num_bytes
        self.counts.read_bytes += unit.num_bytes
        unit.reads = [self._readers.submit(self._residency.read, one) for one in unit.places]

    def _release(self, unit: Unit) -> None:
        for place in unit.places:
            self._residency.release(place)
        self._resident_bytes -= unit.num_bytes
        self._staying_bytes -= unit.num_bytes * unit.stays
        unit.is_resident, unit.stays, self._may_go[unit.number] = False, False, False


def _wait(unit: Unit) -> None:
    """Wait until a unit is read. Raises: WeightsChanged; MemoryError"""
    reads, unit.reads = unit.reads, []
    for one in reads:
        one.result()


def _margin_bytes() -> int:
    total = memory_limit_bytes() or psutil.virtual_memory().total
    return min(MAX_MARGIN_BYTES, max(MIN_MARGIN_BYTES, int(MARGIN_SHARE * total)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    """The layer that a place belongs to. `block`: the entry of a module list that it is in; `slot`:
    which expert's it is. `is_table`: rows of it are looked up, nothing is multiplied by it."""

    module: nn.Module
    block: nn.Module | None
    list_name: str
    slot: int | None
    is_table: bool


def _owners(model: nn.Module, places: Sequence[Place]) -> Iterator[tuple[Place, _Owner]]:
    """Yield each place that a module of the model uses, in the order of the model's modules."""
    by_address = {}
    for place in places:
        by_address[place.address] = place
    starts = sorted(by_address)
    modules = dict(model.named_modules())
    found = set()
    for path, module in modules.items():
        names = path.split(".")
        prefixes = [".".join(names[:i]) for i in range(len(names))]
        lists = [one for one in prefixes if isinstance(modules[one], nn.ModuleList)]
        block = None
        if lists:
            block = modules[".".join(names[: len(lists[0].split(".")) + 1])]
        for name, tensor in module.named_buffers(recurse=False):
            at = bisect_right(starts, tensor.data_ptr()) - 1
            if at < 0 or starts[at] in found:
                continue
            place = by_address[starts[at]]
            if tensor.data_ptr() >= place.address + place.num_bytes:
                continue
            found.add(starts[at])
            slot = _SLOT.search(name) if isinstance(module, Experts) else None
            yield (
                place,
                _Owner(
                    module=module,
                    block=block,
                    list_name=lists[0] if lists else "",
                    slot=int(slot.group(1)) if slot and module.slots is None else None,
                    is_table=isinstance(module, VocabParallelEmbedding) and HEAD not in place.name,
                ),
            )
