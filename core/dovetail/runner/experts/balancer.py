"""ExpertBalancer: moves experts between ranks, between steps, to even out their loads.

Every rank runs the same balancer at the same steps on the counts of all engines, broadcast by the
first rank, so all decide alike. Matrices are overwritten in place, so captured graphs stay valid.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from zlib import crc32

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import Communicator
from dovetail.interfaces.data.spec import ExpertBalanceSpec, RunSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.layers.moe.experts import Experts
from dovetail.parallel.experts import Held, balanced, balancedness
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import RunnerPart

log = logging.getLogger(__name__)

MIXED = -1
"""Replaces a layout's checksum if a rank has several layouts in one layer."""


class ExpertBalancer(RunnerPart):
    """The balancer of a runner whose experts are placed on ranks; it counts steps from the first
    request on. Without a `spec`, or placed experts, none moves.

    Loads cover the last `window_steps` steps: a snapshot of the counts is taken that many steps
    before a rebalance.
    """

    def __init__(self, run: RunSpec) -> None:
        self._run = run
        self._is_open = False

    def attach(self, loaded: LoadedModel) -> None:
        """Balance a model's experts; log a warning if none are placed. Mutates: self"""
        run, layers = self._run, [m for m in loaded.module.modules() if isinstance(m, Experts)]
        placed = [layer for layer in layers if layer.slots is not None]
        if not placed and run.rank.num_stages == 1 and run.rank.expert_rank == 0:
            name = run.model_plugin.name
            log.warning("--enable-expert-parallel has no effect: %s has no layers for it", name)
        self._spec = run.expert_balance or ExpertBalanceSpec()
        self._layers: Sequence[Experts] = placed if run.expert_balance is not None else ()
        self._num_steps = 0
        self._noted: deque[tuple[int, torch.Tensor]] = deque()

    def allocate(self, storage: Allocated) -> None:
        """Raise ConfigError unless all slots of a layer have the same storage layout. All ranks
        call it."""
        if not self._layers:
            return
        group = self._group()
        found = [layer.slot_layouts() for layer in self._layers]
        digests = [crc32(texts.pop().encode()) if len(texts) == 1 else MIXED for texts in found]
        mine = torch.tensor(digests, device=group.device)
        others = group.all_gather(mine)
        if bool((others == MIXED).any() | (others != mine).any()):
            raise ConfigError(
                "experts of one layer are stored in different ways, so they cannot move.",
                where="--enable-eplb",
                fix="leave the flag out, or use another quantization.",
            )

    def open(self) -> None:
        """Balance from the next step on. Mutates: self"""
        self._is_open = True

    def release(self) -> Sequence[torch.Tensor]:
        """Do not count the steps of the next start. Mutates: self"""
        self._is_open = False
        return ()

    @torch.inference_mode()
    def before(self, plan: StepPlan) -> None:
        """Move experts if a rebalance is due. Mutates: the layers"""
        if not (self._is_open and self._layers):
            return
        spec, step = self._spec, self._num_steps
        self._num_steps += 1
        if step and step % spec.interval_steps == 0:
            self._rebalance(step)
        if step == 0 or (step + spec.window_steps) % spec.interval_steps == 0:
            self._noted.append((step, self._counts()))

    def _counts(self) -> torch.Tensor:
        """Return how often each expert was picked so far. Shapes: [layers, X] int64"""
        slots = [layer.slots for layer in self._layers]
        return torch.stack([s.counts for s in slots if s is not None and s.counts is not None])

    def _rebalance(self, step: int) -> None:
        """Compute a better placement from the loads of the window, and move experts."""
        first = max(0, step - self._spec.window_steps)
        while len(self._noted) > 1 and self._noted[1][0] <= first:
            self._noted.popleft()
        loads = self._counts() - self._noted[0][1]
        slots = self._layers[0].slots
        assert slots is not None
        if slots.column.size > 1:
            loads = slots.column.joined().all_reduce(loads.contiguous())
        group = self._group()
        layer_loads = group.broadcast(loads.contiguous(), 0).tolist()
        before = self._balance(layer_loads)
        moved = sum(
            self._move(layer, balanced(own, _placement_of(layer)), group)
            for layer, own in zip(self._layers, layer_loads, strict=True)
        )
        log.log(
            logging.INFO if self._spec.is_logged and group.rank == 0 else logging.DEBUG,
            "experts: balance %.2f over the last %d steps, %.2f by the same loads after %d moves",
            before,
            step - first,
            self._balance(layer_loads),
            moved,
        )

    def _balance(self, loads: Sequence[Sequence[int]]) -> float:
        """Return the mean balance of the layers: 1 is even."""
        pairs = zip(self._layers, loads, strict=True)
        return sum(balancedness(own, _placement_of(layer)) for layer, own in pairs) / len(
            self._layers
        )

    def _group(self) -> Communicator:
        slots = self._layers[0].slots
        assert slots is not None
        return slots.group.joined()

    def _move(self, layer: Experts, wanted: Held, group: Communicator) -> int:
        """Move each expert to its new slots; return how many moved. Mutates: layer"""
        placement, arrived = _placement_of(layer), {}
        for rank, (old, new) in enumerate(zip(placement, wanted, strict=True)):
            for slot, expert in enumerate(new):
                if old[slot] == expert:
                    continue
                source = _holder(placement, expert, rank)
                found = _sent(layer, placement[source].index(expert), source, group)
                if rank == group.rank:
                    arrived[slot] = found
        for slot, content in arrived.items():
            _fill(layer, slot, content)
        assert layer.slots is not None
        layer.slots.assign(wanted)
        pairs = zip(placement, wanted, strict=True)
        return sum(a != b for old, new in pairs for a, b in zip(old, new, strict=True))


def _placement_of(layer: Experts) -> Held:
    assert layer.slots is not None
    return layer.slots.held


def _holder(placement: Held, expert: int, rank: int) -> int:
    """Return a rank that holds an expert, preferably `rank` itself."""
    holders = [number for number, experts in enumerate(placement) if expert in experts]
    return rank if rank in holders else holders[0]


def _sent(layer: Experts, slot: int, source: int, group: Communicator) -> torch.Tensor:
    """Return the content of a slot of rank `source`, on every rank. Shapes: [bytes] uint8"""
    own = slot if source == group.rank else 0  # any slot: the sizes are equal
    content = torch.cat([_bytes(tensor) for tensor in layer.slot_tensors(own)])
    return group.broadcast(content, source)


def _fill(layer: Experts, slot: int, content: torch.Tensor) -> None:
    """Write a slot's content. Mutates: layer"""
    tensors = layer.slot_tensors(slot)
    for tensor, part in zip(tensors, content.split([t.nbytes for t in tensors]), strict=True):
        _bytes(tensor).copy_(part)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor viewed as bytes."""
    return tensor.view(-1).view(torch.uint8)
