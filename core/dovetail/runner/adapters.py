"""RunnerAdapters: adapters read from their folders, cut for a rank, and put into layers' slots.

Reading happens beside the steps and touches no layer; slots are filled between two steps, by the
plan. Knows no request; the engine says which adapter goes where and what is to be forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.adapter_config import CONFIG, adapter_config
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
from dovetail.layers.expert_adapters import ExpertAdapters, Key
from dovetail.layers.experts import Experts
from dovetail.layers.linear import Linear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.stages import Elsewhere
from dovetail.layers.weights import Target, map_name
from dovetail.runner.adapter_cutting import Cutting

logger = logging.getLogger(__name__)

LowRank = tuple[torch.Tensor, torch.Tensor]
INFINITY = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Infinity of a type, as an integer."""


@dataclass(slots=True, kw_only=True)
class _OnHost:
    """An adapter as this rank keeps it: changes by the path of the layer. `is_plain`: all are
    low-rank products of linear layers, or of the head, which runs apart from the layers."""

    linears: dict[str, SlotWeights]
    tables: dict[str, tuple[LowRank | None, torch.Tensor | None]]
    experts: dict[str, dict[Key, SlotWeights]]
    is_plain: bool
    prompt: torch.Tensor | None = None


def runner_adapters(run: RunSpec, device: torch.device) -> RunnerAdapters | None:
    """Return the adapters of a runner, None where none are served."""
    return None if run.adapters is None else RunnerAdapters(run.adapters, run, device)


def slots_in_use(
    adapters: RunnerAdapters | None,
    slots: np.ndarray | None,
    positions: np.ndarray | None = None,
) -> StepAdapters | None:
    """Return what layers must know of tokens in these slots, None where none uses an adapter.

    Shapes: slots [T] int32, positions [T]
    """
    return None if adapters is None or slots is None else adapters.in_slots(slots, positions)


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
        self._prompted = np.zeros(spec.max_slots, dtype=bool)
        self._linears: dict[str, Linear] = {}
        self._tables: dict[str, VocabParallelEmbedding | LogitsHead] = {}
        self._experts: dict[str, Experts] = {}

    def attach(self, module: nn.Module) -> None:
        """Give the layers of a model that has been loaded their slots. Mutates: module, self"""
        self._module = module
        self._weight_map = cast(Model, module).weight_map()
        self._linears.clear()
        self._tables.clear()
        self._experts.clear()
        tables = (p for p, m in module.named_modules() if isinstance(m, VocabParallelEmbedding))
        self._token_table = next(tables, "")
        heads = [m for m in module.modules() if isinstance(m, LogitsHead)]
        of_heads = {id(head.linear) for head in heads}
        for path, layer in module.named_modules():
            if isinstance(layer, VocabParallelEmbedding | LogitsHead):
                layer.adapters = TableSlots()
                self._tables[path] = layer
            elif isinstance(layer, Linear) and layer.takes_adapters and id(layer) not in of_heads:
                layer.adapters = LinearSlots(layer, self._spec)
                self._linears[path] = layer
            elif isinstance(layer, Experts):
                layer.adapters = ExpertAdapters()
                self._experts[path] = layer

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

    def in_slots(
        self, slots: np.ndarray, positions: np.ndarray | None = None
    ) -> StepAdapters | None:
        """Return what layers must know of tokens in these slots, None where none uses an adapter.

        Shapes: slots [T] int32, positions [T]
        """
        used = np.unique(slots[slots != NO_SLOT])
        if not len(used):
            return None
        placed = None
        if positions is not None and self._prompted[used].any():
            placed = torch.from_numpy(positions.copy()).to(self._device)
        return StepAdapters(
            slots=torch.from_numpy(slots.copy()).to(self._device),
            is_low_rank=bool(self._plain[used].all()),
            positions=placed,
        )

    def _put(self, slot: int, adapter: _OnHost) -> None:
        for path, layer in self._linears.items():
            assert layer.adapters is not None
            layer.adapters.put_change(layer, slot, adapter.linears.get(path))
        for path, table in self._tables.items():
            assert table.adapters is not None
            pair, weight = adapter.tables.get(path, (None, None))
            before = adapter.prompt if path == self._token_table else None
            table.adapters.put(slot, *self._on_device(pair, weight, before))
        for path, experts in self._experts.items():
            assert experts.adapters is not None
            experts.adapters.put(slot, adapter.experts.get(path))
        self._plain[slot] = adapter.is_plain
        self._prompted[slot] = adapter.prompt is not None

    def _on_device(self, pair: LowRank | None, *others: torch.Tensor | None) -> tuple[Any, ...]:
        moved = None if pair is None else (pair[0].to(self._device), pair[1].to(self._device))
        return moved, *(None if one is None else one.to(self._device) for one in others)

    def _weights(self, source: AdapterSource) -> AdapterWeights:
        """Return an adapter as the method that reads its sort has found it. Raises: ConfigError"""
        folder = Path(source.path)
        config = adapter_config(folder)
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
        experts: dict[tuple[str, Key], dict[str | None, ModuleChange]] = {}
        found = _OnHost(linears={}, tables={}, experts={}, is_plain=True)
        for module, change in weights.changes.items():
            path, layer, target = self._layer(source, module)
            if isinstance(layer, Elsewhere):
                continue
            where = f"{source.path}: {module}"
            self._verify(where, change)
            numbers += _numbers(where, change)
            if isinstance(layer, Linear):
                linears.setdefault(path, {})[target.part] = change
            elif isinstance(layer, Experts):
                key = _expert_of(where, layer, path, target)
                experts.setdefault((path, key), {})[target.part] = change
            elif isinstance(layer, VocabParallelEmbedding | LogitsHead):
                found.tables[path] = self._of_table(where, layer, change)
                found.is_plain &= isinstance(layer, LogitsHead)
        if weights.prompt is not None:
            where = f"{source.path}: the vectors before a prompt"
            self._verify_prompt(where, weights.prompt)
            numbers.append((where, weights.prompt))
            found.prompt, found.is_plain = self._kept(weights.prompt), False
        _check_finite(numbers)
        for path, parts in linears.items():
            slot = Cutting(f"{source.path}: {path}", self._linears[path], self._dtype).cut(parts)
            found.linears[path] = slot
            found.is_plain &= slot.is_low_rank
        for (path, key), parts in experts.items():
            found.experts.setdefault(path, {})[key] = self._of_expert(source, path, key, parts)
            found.is_plain = False
        return found

    def _verify_prompt(self, where: str, prompt: torch.Tensor) -> None:
        """Raises: ConfigError for what the flags do not make room for"""
        if prompt.shape[0] <= self._spec.max_prompt_tokens:
            return
        most = self._spec.max_prompt_tokens
        raise ConfigError(
            f"there are {prompt.shape[0]}, and {most} is the most.",
            where=where,
            fix="start with --enable-prompt-adapter and "
            f"--max-prompt-adapter-token {prompt.shape[0]}.",
        )

    def _of_expert(
        self,
        source: AdapterSource,
        path: str,
        key: Key,
        parts: Mapping[str | None, ModuleChange],
    ) -> SlotWeights:
        """Return what this rank keeps of the change of one expert's matrix. Raises: ConfigError"""
        expert, leaf = key
        where = f"{source.path}: {path}.{expert}.{leaf}"
        cut = Cutting(where, self._experts[path].matrix_of(leaf), self._dtype).cut(parts)
        if not cut.is_low_rank:
            raise ConfigError("only low-rank changes of experts are supported.", where=where)
        return cut

    def _layer(self, source: AdapterSource, module: str) -> tuple[str, nn.Module, Target]:
        """Return the layer that a module of the checkpoint is here. Raises: ConfigError"""
        target = map_name(self._weight_map, f"{module}.weight")
        words = [] if target is None else target.path.split(".")[:-1]
        layer: nn.Module | None = self._module
        for word in words:
            layer = None if layer is None else layer._modules.get(word)
            if isinstance(layer, Elsewhere | Experts):
                break
        path = ".".join(words)
        if isinstance(layer, Experts):
            path = next(p for p, one in self._experts.items() if one is layer)
        if target is not None and target.is_tied:
            path, layer = next(
                ((p, m) for p, m in self._tables.items() if isinstance(m, LogitsHead)),
                (path, layer),
            )
        is_known = path in self._linears or path in self._tables or path in self._experts
        can_be = is_known or isinstance(layer, Elsewhere)
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
        has_bias = change.bias is not None and change.weight is None
        if (change.shift is not None or has_bias) and not self._spec.takes_bias:
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
            self._fits_table(where, weight, vocab, layer.size)
            weight = weight.to(self._dtype).contiguous()
        if change.down is None or change.up is None:
            return None, weight
        up = change.up * change.scale
        first, second = (up, change.down) if is_head else (change.down.t(), up.t())
        self._fits_table(where, first, vocab, first.shape[1])
        self._fits_table(where, second, second.shape[0], layer.size)
        return (self._kept(first), self._kept(second)), weight

    def _fits_table(self, where: str, tensor: torch.Tensor, vocab: int, size: int) -> None:
        """Raises: ConfigError for a tensor that is not [vocab, size]"""
        if tuple(tensor.shape) == (vocab, size):
            return
        fix = "use an adapter that was trained for this model."
        if tensor.dim() == 2 and tensor.shape[0] > vocab and tensor.shape[1] == size:
            fix = "adapters that add tokens are not supported; merge it into the checkpoint."
        raise ConfigError(
            f"its shape is {list(tensor.shape)}, and the model's [{vocab}, {size}].",
            where=where,
            fix=fix,
        )

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype).contiguous()


def _expert_of(where: str, layer: Experts, path: str, target: Target) -> Key:
    """Return which matrix of which expert a module is. Raises: ConfigError"""
    number, _, leaf = target.path.removeprefix(f"{path}.").removesuffix(".weight").partition(".")
    if not number.isdecimal() or int(number) >= layer.num_experts or leaf not in layer.specs:
        raise ConfigError(
            f"it is not a matrix of one of the {layer.num_experts} experts.", where=where
        )
    if not layer.takes_adapters:
        raise ConfigError(
            "adapters of experts that a fused kernel multiplies, or that are divided over ranks, "
            "are not supported.",
            where=where,
            fix="leave experts out of target_modules, or merge the adapter into the checkpoint.",
        )
    return int(number), leaf


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
