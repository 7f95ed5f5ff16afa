"""RunnerAdapters: adapters read from their folders, cut for a rank, and put into layers' slots.

Reading happens beside the steps and touches no layer; slots are filled between two steps, by the
plan. Knows no request; the engine says which adapter goes where and what is to be forgotten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from dovetail import registry
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights, ModuleChange
from dovetail.interfaces.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.model import Model
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import NO_SLOT, StepPlan
from dovetail.layers.adapters import LinearSlots, SlotWeights, TableSlots
from dovetail.layers.context import StepAdapters
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import Linear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.stages import Elsewhere
from dovetail.layers.weights import Target, map_name

logger = logging.getLogger(__name__)

CONFIG = "adapter_config.json"
LowRank = tuple[torch.Tensor, torch.Tensor]
INFINITY = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Infinity of a type, as an integer."""


@dataclass(slots=True, kw_only=True)
class _OnHost:
    """An adapter as this rank keeps it: changes by the path of the layer. `is_plain`: all are
    low-rank products of linear layers, or of the head, which runs apart from the layers."""

    linears: dict[str, SlotWeights]
    tables: dict[str, tuple[LowRank | None, torch.Tensor | None]]
    is_plain: bool


class RunnerAdapters:
    """The adapters of one rank."""

    def __init__(self, spec: AdapterSpec, run: RunSpec, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        self._dtype = dtype_of(spec.dtype)
        self._methods: list[AdapterMethod] = [registry.make(s, run.model) for s in spec.methods]
        self._on_host: dict[str, _OnHost] = {}
        self._lock = Lock()
        self._plain = np.ones(spec.max_slots, dtype=bool)
        self._linears: dict[str, Linear] = {}
        self._tables: dict[str, VocabParallelEmbedding | LogitsHead] = {}

    def attach(self, module: nn.Module) -> None:
        """Give the layers of a model that has been loaded their slots. Mutates: module, self"""
        self._module = module
        self._weight_map = cast(Model, module).weight_map()
        self._linears.clear()
        self._tables.clear()
        heads = [m for m in module.modules() if isinstance(m, LogitsHead)]
        of_heads = {id(head.linear) for head in heads}
        for path, layer in module.named_modules():
            if isinstance(layer, VocabParallelEmbedding | LogitsHead):
                layer.adapters = TableSlots()
                self._tables[path] = layer
            elif isinstance(layer, Linear) and id(layer) not in of_heads:
                layer.adapters = LinearSlots(layer, self._spec)
                self._linears[path] = layer

    def read(self, source: AdapterSource) -> None:
        """Read an adapter into host memory. Any thread may call this, during a step.

        Raises: RequestError that says which file and key is wrong. Mutates: self
        """
        try:
            found = self._cut(source, self._weights(source))
        except ConfigError as error:
            raise RequestError(error.what, where=error.where, fix=error.fix) from error
        with self._lock:
            self._on_host[source.key] = found

    def follow(self, plan: StepPlan) -> None:
        """Forget adapters and fill slots as a plan says. Mutates: self, the layers"""
        with self._lock:
            moved = [(move.slot, self._on_host[move.key]) for move in plan.adapters]
            for key in plan.dropped_adapters:
                self._on_host.pop(key, None)
        for slot, adapter in moved:
            self._put(slot, adapter)

    def in_slots(self, slots: np.ndarray | None) -> StepAdapters | None:
        """Return what layers must know of tokens in these slots, None where none uses an adapter.

        Shapes: slots [T] int32
        """
        if slots is None:
            return None
        used = np.unique(slots[slots != NO_SLOT])
        if not len(used):
            return None
        return StepAdapters(
            slots=torch.from_numpy(slots.copy()).to(self._device),
            is_low_rank=bool(self._plain[used].all()),
        )

    def _put(self, slot: int, adapter: _OnHost) -> None:
        for path, layer in self._linears.items():
            assert layer.adapters is not None
            layer.adapters.put_change(layer, slot, adapter.linears.get(path))
        for path, table in self._tables.items():
            assert table.adapters is not None
            pair, weight = adapter.tables.get(path, (None, None))
            table.adapters.put(slot, *self._on_device(pair, weight))
        self._plain[slot] = adapter.is_plain

    def _on_device(
        self, pair: LowRank | None, weight: torch.Tensor | None
    ) -> tuple[LowRank | None, torch.Tensor | None]:
        moved = None if pair is None else (pair[0].to(self._device), pair[1].to(self._device))
        return moved, None if weight is None else weight.to(self._device)

    def _weights(self, source: AdapterSource) -> AdapterWeights:
        """Return an adapter as the method that reads its sort has found it. Raises: ConfigError"""
        folder = Path(source.path)
        config = _config(folder)
        wanted = config.get("peft_type")
        for method in self._methods:
            if wanted in method.peft_types:
                return method.read(folder, config)
        known = [name for method in self._methods for name in method.peft_types]
        raise ConfigError(
            f"adapters of the type {wanted!r} are not supported.",
            where=f"{folder / CONFIG}: peft_type",
            fix=f"use one of {', '.join(known)}.",
        )

    def _cut(self, source: AdapterSource, weights: AdapterWeights) -> _OnHost:
        """Return what this rank's layers keep of an adapter. Raises: ConfigError"""
        linears: dict[str, dict[str | None, ModuleChange]] = {}
        numbers: list[tuple[str, torch.Tensor]] = []
        found = _OnHost(linears={}, tables={}, is_plain=True)
        for module, change in weights.changes.items():
            path, layer, target = self._layer(source, module)
            if isinstance(layer, Elsewhere):
                continue
            where = f"{source.path}: {module}"
            self._verify(where, change)
            numbers += _numbers(where, change)
            if isinstance(layer, Linear):
                linears.setdefault(path, {})[target.part] = change
            elif isinstance(layer, VocabParallelEmbedding | LogitsHead):
                found.tables[path] = self._of_table(where, layer, change)
                found.is_plain &= isinstance(layer, LogitsHead)
        _check_finite(numbers)
        for path, parts in linears.items():
            slot = _Cutting(f"{source.path}: {path}", self._linears[path], self._dtype).cut(parts)
            found.linears[path] = slot
            found.is_plain &= slot.is_low_rank
        return found

    def _layer(self, source: AdapterSource, module: str) -> tuple[str, nn.Module, Target]:
        """Return the layer that a module of the checkpoint is here. Raises: ConfigError"""
        target = map_name(self._weight_map, f"{module}.weight")
        words = [] if target is None else target.path.split(".")[:-1]
        layer: nn.Module | None = self._module
        for word in words:
            layer = None if layer is None else layer._modules.get(word)
            if isinstance(layer, Elsewhere):
                break
        path = ".".join(words)
        if target is not None and target.is_tied:
            path, layer = next(
                ((p, m) for p, m in self._tables.items() if isinstance(m, LogitsHead)),
                (path, layer),
            )
        can_be = path in self._linears or path in self._tables or isinstance(layer, Elsewhere)
        if target is None or layer is None or not can_be:
            raise ConfigError(
                f"{module} is not a layer of this model that takes adapters.",
                where=str(Path(source.path) / CONFIG),
                fix="use an adapter that was trained for this model, of its linear layers, token "
                "table and head.",
            )
        return path, layer, target

    def _verify(self, where: str, change: ModuleChange) -> None:
        """Raises: ConfigError for what the flags do not make room for"""
        if change.down is not None and change.down.shape[0] > self._spec.max_rank:
            raise ConfigError(
                f"the rank is {change.down.shape[0]}, and {self._spec.max_rank} is the most.",
                where=where,
                fix=f"start with --max-lora-rank {change.down.shape[0]}.",
            )
        if (change.shift is not None or change.bias is not None) and not self._spec.takes_bias:
            raise ConfigError(
                "the adapter has a bias.", where=where, fix="start with --enable-lora-bias."
            )

    def _of_table(
        self, where: str, layer: VocabParallelEmbedding | LogitsHead, change: ModuleChange
    ) -> tuple[LowRank | None, torch.Tensor | None]:
        """Return a change of a table [V, E] as (first [V, r], second [r, E]), and a whole one.

        Raises: ConfigError
        """
        is_head = isinstance(layer, LogitsHead)
        vocab = layer.vocab_size if isinstance(layer, LogitsHead) else layer.part.full
        others = (change.magnitude, change.output_scale, change.shift, change.bias)
        if any(one is not None for one in others) or change.input_scale is not None:
            raise ConfigError("only low-rank changes of a table are supported.", where=where)
        weight = change.weight
        if weight is not None:
            if weight.shape[0] != vocab:
                raise ConfigError(
                    f"it has {weight.shape[0]} tokens and the model {vocab}: adapters that add "
                    "tokens are not supported.",
                    where=where,
                )
            weight = weight.to(self._dtype).contiguous()
        if change.down is None or change.up is None:
            return None, weight
        up = change.up * change.scale
        first, second = (up, change.down) if is_head else (change.down.t(), up.t())
        if first.shape[0] != vocab:
            raise ConfigError(
                f"it is of {first.shape[0]} tokens and the model has {vocab}.", where=where
            )
        return (self._kept(first), self._kept(second)), weight

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype).contiguous()


class _Cutting:
    """The changes of one linear layer's parts, put side by side and cut for this rank."""

    def __init__(self, where: str, layer: Linear, dtype: torch.dtype) -> None:
        self._where = where
        self._layer = layer
        self._dtype = dtype

    def cut(self, parts: Mapping[str | None, ModuleChange]) -> SlotWeights:
        """Return the layer's change; `parts` are by the name of the fused matrix, None for all of
        them joined. Raises: ConfigError"""
        changes = [self._of_part(parts, i) for i in range(len(self._layer.parts))]
        inputs = self._input_scales([c.input_scale for c, _ in changes])
        down, up = self._pair(changes)
        if down is not None and inputs is not None:
            down *= inputs.unsqueeze(1).to(down)
        return SlotWeights(
            down=down,
            up=up,
            magnitude=self._vectors([(c.magnitude, o) for c, o in changes], None),
            output_scale=self._vectors([(c.output_scale, o) for c, o in changes], 1.0),
            shift=self._vectors([(c.shift, o) for c, o in changes], 0.0),
            bias=self._vectors([(c.bias, o) for c, o in changes], None),
            input_scale=inputs,
            weight=self._whole(changes),
        )

    def _of_part(
        self, parts: Mapping[str | None, ModuleChange], number: int
    ) -> tuple[ModuleChange, int]:
        """Return a part's change, and the row of the change's outputs where the part begins."""
        own = self._layer.parts
        if own[number].name in parts:
            return parts[own[number].name], 0
        return parts.get(None, ModuleChange()), sum(p.full for p in own[:number])

    def _rows(self, tensor: torch.Tensor, number: int, offset: int) -> torch.Tensor:
        """Return this rank's outputs of a part, zeros where its share is padded."""
        part = self._layer.parts[number]
        full = sum(p.full for p in self._layer.parts) if offset or number == 0 else part.full
        if tensor.shape[0] not in (part.full, full):
            raise self._misfit(f"{tensor.shape[0]} outputs", part.full)
        held = tensor.narrow(0, offset + part.start, part.held)
        if part.held == part.local:
            return held
        padding = held.new_zeros(part.local - part.held, *held.shape[1:])
        return torch.cat([held, padding])

    def _cut_inputs(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        layer = self._layer
        if tensor.shape[axis] != layer.full_in_size:
            raise self._misfit(f"{tensor.shape[axis]} inputs", layer.full_in_size)
        if not layer.is_input_split:
            return tensor
        return tensor.narrow(axis, layer.group.rank * layer.spec.in_size, layer.spec.in_size)

    def _input_scales(self, given: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Return a scale of the inputs for each part, ones where it has none. Shapes: [P, I]"""
        if all(one is None for one in given):
            return None
        ones = torch.ones(self._layer.spec.in_size)
        cut = [ones if s is None else self._cut_inputs(s.flatten().float(), 0) for s in given]
        return torch.stack(cut)

    def _pair(
        self, changes: Sequence[tuple[ModuleChange, int]]
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the low-rank matrices of all parts, of the largest rank among them."""
        ranks = [0 if c.down is None else c.down.shape[0] for c, _ in changes]
        if not any(ranks):
            return None, None
        spec = self._layer.spec
        make = torch.empty if min(ranks) == max(ranks) else torch.zeros
        down = make(len(changes), max(ranks), spec.in_size, dtype=self._dtype)
        up = make(max(ranks), spec.out_size, dtype=self._dtype)
        column = 0
        for number, (change, offset) in enumerate(changes):
            size = spec.out_sizes[number]
            if change.down is not None and change.up is not None:
                own = self._cut_inputs(change.down, 1)
                torch.mul(own, change.scale, out=down[number, : ranks[number]])
                own = self._rows(change.up, number, offset)
                copy_turned(up[: ranks[number], column : column + size], own)
            column += size
        return down, up

    def _vectors(
        self, given: Iterable[tuple[torch.Tensor | None, int]], default: float | None
    ) -> torch.Tensor | None:
        """Return one vector over all outputs; where only some parts have one, `default` fills the
        others. Raises: ConfigError without a default"""
        vectors = list(given)
        if all(vector is None for vector, _ in vectors):
            return None
        filled = []
        for number, (vector, offset) in enumerate(vectors):
            size = self._layer.spec.out_sizes[number]
            if vector is not None:
                filled.append(self._rows(vector.flatten().float(), number, offset))
            elif default is not None:
                filled.append(torch.full((size,), default))
            else:
                raise ConfigError(
                    "some of the matrices that are one here have a magnitude or a bias, and "
                    "others do not.",
                    where=self._where,
                )
        return torch.cat(filled)

    def _whole(self, changes: Sequence[tuple[ModuleChange, int]]) -> torch.Tensor | None:
        """Return the matrix in place of the layer's. Raises: ConfigError"""
        given = [(number, c.weight, offset) for number, (c, offset) in enumerate(changes)]
        if all(weight is None for _, weight, _ in given):
            return None
        if any(weight is None for _, weight, _ in given):
            raise ConfigError(
                "some of the matrices that are one here are saved whole, and others are not.",
                where=self._where,
            )
        rows = [self._rows(w, n, offset) for n, w, offset in given if w is not None]
        return self._cut_inputs(torch.cat(rows), 1).to(self._dtype).contiguous()

    def _misfit(self, has: str, wanted: int) -> ConfigError:
        return ConfigError(
            f"it has {has} and the layer {wanted}.",
            where=self._where,
            fix="use an adapter that was trained for this model.",
        )


def _numbers(where: str, change: ModuleChange) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a change, each with where it is."""
    given = {one.name: getattr(change, one.name) for one in fields(change)}
    return [(f"{where}: {name}", t) for name, t in given.items() if isinstance(t, torch.Tensor)]


def _check_finite(numbers: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raises: ConfigError naming a tensor with a number that is not finite"""
    for where, tensor in numbers:
        if not is_finite(tensor):
            raise ConfigError("it holds numbers that are not finite.", where=where)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all numbers are finite.

    As integers, infinities and what is beyond them are the largest among the positive numbers, and
    the largest of all without a sign among the negative ones: two fast passes on one core.
    """
    infinity = INFINITY.get(tensor.dtype)
    if infinity is None or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    signed = tensor.contiguous().view(torch.int32 if tensor.itemsize == 4 else torch.int16).numpy()
    unsigned = signed.view(np.uint32 if tensor.itemsize == 4 else np.uint16)
    sign = 1 << (8 * tensor.itemsize - 1)
    return bool(signed.max() < infinity) and bool(unsigned.max() < infinity + sign)


def copy_turned(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a matrix with its axes exchanged; of 16-bit numbers as integers, which numpy does in
    half of torch's time. Shapes: target [R, O], source [O, R]. Mutates: target"""
    if target.dtype == source.dtype and target.itemsize == 2:
        target.view(torch.int16).numpy()[:] = source.view(torch.int16).numpy().T
    else:
        target.copy_(source.t())


def _config(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json. Raises: ConfigError"""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no such file.", where=str(path), fix="name the folder of an adapter."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"the file cannot be read: {error}.", where=str(path)) from error
    if not isinstance(config, dict):
        raise ConfigError("the file does not hold an object.", where=str(path))
    return config
