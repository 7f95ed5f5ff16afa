"""RunnerAdapters: reads adapters from their folders, shards them, and puts them into layers' slots.

Reading runs in parallel to steps and touches no layer. The plan fills slots between two steps.
Independent of requests: the engine decides which adapter goes where and what is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.adapter_config import CONFIG, adapter_config
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights, ModuleChange
from dovetail.interfaces.data.adapter_spec import AdapterFacts, AdapterSource, AdapterSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import NO_SLOT, NewRow, StepPlan
from dovetail.interfaces.executor import Preparation
from dovetail.layers.adapters.experts import ExpertAdapters, Key
from dovetail.layers.adapters.linear import LinearSlots, SlotWeights
from dovetail.layers.adapters.tables import TableChange, TableSlots
from dovetail.layers.attention.rotary import Rotary
from dovetail.layers.context import StepAdapters, use_adapters
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import Linear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.moe.experts import Experts
from dovetail.layers.stages import AbsentStage
from dovetail.layers.weights import Target, map_name, names_of, weight_map_of
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.lora.copies import Copies
from dovetail.runner.lora.cutting import CutChange, Cutting, Division
from dovetail.runner.lora.memory import AdapterMemory
from dovetail.runner.lora.plans import AdapterPlans, verify_any
from dovetail.runner.lora.tables import (
    INPUTS,
    OUTPUTS,
    ReadTableChange,
    TableReader,
    verify_tokenizer,
    vocab_rows,
)
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import RunnerPart
from dovetail_kernels.sample.seen import on_device

logger = logging.getLogger(__name__)

WEIGHT = ".weight"
PROMPT_VECTORS = "the vectors before a prompt"
INFINITY = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Infinity of a dtype, as an integer."""


@dataclass(slots=True, kw_only=True)
class _OnHost:
    """An adapter on this rank: changes by layer path. `is_plain`: all are low-rank products of
    linear layers, or of the head, which runs apart from the layers. `rope_table` is the number of
    its rope scaling (0: the model's own). It adds `num_added` tokens."""

    linears: dict[str, SlotWeights]
    tables: dict[str, TableChange]
    experts: dict[str, dict[Key, SlotWeights]]
    is_plain: bool
    rope_table: int = 0
    num_added: int = 0
    has_prompt: bool = False


@dataclass(slots=True, kw_only=True)
class _ByLayer:
    """The changes of an adapter by layer, and by part of a layer. `apart` are the modules whose
    changes are more than matrices to copy."""

    linears: dict[str, dict[str | None, ModuleChange]] = field(default_factory=dict)
    experts: dict[tuple[str, Key], dict[str | None, ModuleChange]] = field(default_factory=dict)
    tables: dict[str, ReadTableChange] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)


def _plain(linears: dict[str, SlotWeights]) -> _OnHost:
    """Return an adapter that has only low-rank products of linear layers."""
    return _OnHost(linears=linears, tables={}, experts={}, is_plain=True)


class RunnerAdapters(RunnerPart):
    """The adapters of one rank."""

    prepares = (AdapterSource,)

    def __init__(self, spec: AdapterSpec, run: RunSpec, device: torch.device) -> None:
        self._spec = spec
        self._run = run
        self._device = device
        self._dtype = dtype_of(spec.dtype)
        self._methods: list[AdapterMethod] = [registry.make(s, run.model) for s in spec.methods]
        self._on_host: dict[str, _OnHost] = {}
        self._lock = Lock()
        self._plain = np.ones(spec.max_slots, dtype=bool)
        self._prompted = np.zeros(spec.max_slots, dtype=bool)
        self._rope_tables = np.zeros(spec.max_slots + 1, dtype=np.int64)
        """By slot; the last entry is for tokens without an adapter."""
        self._added = np.zeros(spec.max_slots + 1, dtype=np.int64)
        self._linears: dict[str, Linear] = {}
        self._tables: dict[str, VocabParallelEmbedding | LogitsHead] = {}
        self._experts: dict[str, Experts] = {}
        self._divisions: dict[str, Division] = {}
        """By the paths of linear layers, and of the matrices of experts."""
        self._found: dict[str, tuple[str, nn.Module, Target]] = {}
        self._memory = AdapterMemory()
        self._plans = AdapterPlans(self._memory)

    def attach(self, loaded: LoadedModel) -> None:
        """Create the adapter slots of a loaded model's layers. Mutates: the model, self"""
        module = self._module = loaded.module
        self._weight_map = weight_map_of(loaded.model)
        self._linears.clear()
        self._tables.clear()
        self._experts.clear()
        self._divisions.clear()
        self._found.clear()
        self._plans.clear()
        heads = [m for m in module.modules() if isinstance(m, LogitsHead)]
        of_heads = {id(head.linear) for head in heads}
        for path, layer in module.named_modules():
            if isinstance(layer, VocabParallelEmbedding | LogitsHead):
                layer.adapters = TableSlots(vocab_rows(layer))
                self._tables[path] = layer
            elif isinstance(layer, Linear) and not layer.no_adapters and id(layer) not in of_heads:
                layer.adapters = LinearSlots(layer, self._spec)
                self._linears[path], self._divisions[path] = layer, Division.of(layer)
                self._note_names(path, layer)
            elif isinstance(layer, Experts):
                layer.adapters = ExpertAdapters()
                self._experts[path] = layer
                for leaf in layer.specs:
                    self._divisions[f"{path}.{leaf}"] = Division.of(layer.matrix_of(leaf))
        self._of_tables = TableReader(self._tables, self._spec, self._run, self._stored)

    def _note_names(self, path: str, layer: Linear) -> None:
        """Note the checkpoint names of a layer or its parts, to find the first adapter's modules
        fast. Mutates: self"""
        for name, target in names_of(self._weight_map, f"{path}{WEIGHT}"):
            if name.endswith(WEIGHT) and not target.is_tied:
                self._found[name.removesuffix(WEIGHT)] = path, layer, target

    def allocate(self, storage: Allocated) -> None:
        """Apply adapters to the rows of a batch from now on. Mutates: self"""
        self._batch = storage.batch

    def prepare(self, item: Preparation) -> AdapterFacts:
        """Read an adapter into host memory, and return its facts. Any thread may call this, during
        a step.

        Raises: RequestError that names the file and key at fault. Mutates: self
        """
        assert isinstance(item, AdapterSource)
        source, has_tokenizer = item, False
        try:
            weights = self._weights(source)
            linears = self._plans.filled(weights)
            found = self._cut(source, weights) if linears is None else _plain(linears)
            found.rope_table = self._rope_table(source, weights.rope_factor)
            if self._of_tables.names_tokens(found.tables):
                num_tokens = self._run.model.vocab_size + found.num_added
                has_tokenizer = verify_tokenizer(Path(source.path), self._spec, num_tokens)
        except ConfigError as error:
            raise RequestError(error.what, where=error.where, fix=error.fix) from error
        with self._lock:
            self._on_host[source.key] = found
        return AdapterFacts(num_added_tokens=found.num_added, has_tokenizer=has_tokenizer)

    def added_tokens(self, new: NewRow) -> int:
        """Return how many tokens a row's adapter adds."""
        return int(self._added[new.adapter_slot])

    def around(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Return a with block in which layers apply the adapters of a step's tokens."""
        slots = inputs.adapters
        return use_adapters(None if slots is None else self.in_slots(slots, inputs.positions))

    def around_rows(self, row: int | np.ndarray, count: int) -> AbstractContextManager[None]:
        """Return a with block in which layers apply one row's adapter to `count` vectors, or each
        of several rows' to one."""
        return use_adapters(self.in_slots(np.broadcast_to(self._batch.adapters[row], count)))

    def before(self, plan: StepPlan) -> None:
        """Drop adapters and fill slots as a plan says. Mutates: self, the layers"""
        with self._lock:
            moved = [(move.slot, self._on_host[move.key]) for move in plan.adapters]
            for key in plan.dropped_adapters:
                self._on_host.pop(key, None)
        for slot, adapter in moved:
            self._put(slot, adapter)

    def in_slots(
        self, slots: np.ndarray, positions: np.ndarray | None = None
    ) -> StepAdapters | None:
        """Return what layers need to know about tokens in these slots, None if none uses an
        adapter.

        Shapes: slots [T] int32, positions [T]
        """
        if (slots == NO_SLOT).all():
            return None
        used = np.unique(slots[slots != NO_SLOT])
        placed = None
        if positions is not None and self._prompted[used].any():
            placed = on_device(positions.copy(), self._device)
        tables = None
        if self._rope_tables[used].any():
            tables = on_device(self._rope_tables[slots], self._device)
        return StepAdapters(
            slots=on_device(slots.copy(), self._device),
            is_low_rank=bool(self._plain[used].all()) and tables is None,
            positions=placed,
            rope_tables=tables,
            num_added=int(self._added[used].max()),
        )

    def _put(self, slot: int, adapter: _OnHost) -> None:
        for path, layer in self._linears.items():
            assert layer.adapters is not None
            layer.adapters.put_change(layer, slot, adapter.linears.get(path))
        for path, table in self._tables.items():
            assert table.adapters is not None
            change = adapter.tables.get(path)
            table.adapters.put(slot, None if change is None else change.on(self._device))
        for path, experts in self._experts.items():
            assert experts.adapters is not None
            changes = adapter.experts.get(path, {})
            experts.adapters.put(slot, {key: one.on(self._device) for key, one in changes.items()})
        self._plain[slot] = adapter.is_plain
        self._prompted[slot] = adapter.has_prompt
        self._rope_tables[slot] = adapter.rope_table
        self._added[slot] = adapter.num_added

    def _weights(self, source: AdapterSource) -> AdapterWeights:
        """Return an adapter as read by the method for its type. Raises: ConfigError"""
        folder = Path(source.path)
        config = adapter_config(folder)
        wanted = config.get("peft_type")
        for method in self._methods:
            if wanted in method.peft_types:
                return method.open(folder, config)
        known = [name for method in self._methods for name in method.peft_types]
        raise ConfigError(
            f"adapters of the type {wanted!r} are not supported.",
            where=f"{folder / CONFIG}: peft_type",
            fix=f"use one of {', '.join(known)}.",
        )

    def _cut(self, source: AdapterSource, weights: AdapterWeights) -> _OnHost:
        """Return this rank's part of an adapter. Raises: ConfigError"""
        copies, given = Copies(self._dtype, self._memory, weights.content), _ByLayer()
        self._sort(source, weights.changes, given)
        verify_any(source.path, weights)
        if given.apart:
            copies.look_at_numbers()
        found = _plain({})
        found.tables, found.num_added = self._of_tables.changes(weights, given.tables)
        if weights.prompt is not None:
            self._put_prompt(source, weights.prompt, found)
        cut, of_experts = {}, {}
        for path, parts in given.linears.items():
            where = f"{source.path}: {path}"
            cut[path] = Cutting(where, self._divisions[path], self._dtype, copies).cut(parts)
        for (path, key), parts in given.experts.items():
            of_experts[path, key] = self._of_expert(source, path, key, parts, copies)
        memory, broken = copies.carry_out()
        if broken is not None:
            copies.look_at_numbers()
        _verify_finite(source, weights, given.apart, broken)
        found.linears = {path: one.of(memory) for path, one in cut.items()}
        for (path, key), one in of_experts.items():
            found.experts.setdefault(path, {})[key] = one.of(memory)
        heads = {path for path, one in self._tables.items() if isinstance(one, LogitsHead)}
        found.is_plain = found.tables.keys() <= heads and not (found.has_prompt or found.experts)
        found.is_plain &= all(one.is_low_rank for one in cut.values())
        if found.is_plain and not found.tables:
            self._plans.note(weights, copies, cut)
        return found

    def _sort(
        self, source: AdapterSource, changes: Mapping[str, ModuleChange], given: _ByLayer
    ) -> None:
        """Group changes by the layers they belong to. Raises: ConfigError. Mutates: given"""
        for module, change in changes.items():
            path, layer, target = self._layer(source, module)
            if isinstance(layer, AbsentStage):
                continue
            self._verify(source, module, change)
            if not change.is_low_rank or isinstance(layer, VocabParallelEmbedding | LogitsHead):
                given.apart.append(module)
            if isinstance(layer, Linear):
                given.linears.setdefault(path, {})[target.part] = change
            elif isinstance(layer, Experts):
                key = _expert_of(f"{source.path}: {module}", layer, path, target)
                given.experts.setdefault((path, key), {})[target.part] = change
            elif isinstance(layer, VocabParallelEmbedding | LogitsHead):
                where = f"{source.path}: {module}"
                given.tables[path] = ReadTableChange(where=where, change=change)

    def _put_prompt(self, source: AdapterSource, prompt: torch.Tensor, found: _OnHost) -> None:
        """Add the prompt vectors of a prompt-tuning adapter. Raises: ConfigError. Mutates: found"""
        self._verify_prompt(source, prompt)
        found.has_prompt, path = True, self._of_tables.token_table
        if path:
            table = found.tables.get(path, TableChange())
            found.tables[path] = replace(table, prompt=self._stored(prompt))

    def _rope_table(self, source: AdapterSource, factor: float | None) -> int:
        """Return the number of an adapter's rope scaling. Raises: ConfigError"""
        if factor is None:
            return 0
        where = str(Path(source.path) / CONFIG)
        if factor not in self._spec.rope_factors:
            raise ConfigError(
                f"the adapter was trained with a linear rope scaling of {factor:g}.",
                where=where,
                fix=f"start with --long-lora-scaling-factors {factor:g}.",
            )
        if not any(isinstance(m, Rotary) and m.factors for m in self._module.modules()):
            raise ConfigError(
                "the adapter has its own rope scaling, which this model cannot have.",
                where=where,
                fix="use an adapter that was trained without.",
            )
        return self._spec.rope_factors.index(factor) + 1

    def _verify_prompt(self, source: AdapterSource, prompt: torch.Tensor) -> None:
        """Raises: ConfigError for more vectors than the flags allow"""
        if prompt.shape[0] <= self._spec.max_prompt_tokens:
            return
        max_vectors = self._spec.max_prompt_tokens
        raise ConfigError(
            f"there are {prompt.shape[0]}, and {max_vectors} is the most.",
            where=f"{source.path}: {PROMPT_VECTORS}",
            fix="start with --enable-prompt-adapter and "
            f"--max-prompt-adapter-token {prompt.shape[0]}.",
        )

    def _of_expert(
        self,
        source: AdapterSource,
        path: str,
        key: Key,
        parts: Mapping[str | None, ModuleChange],
        copies: Copies,
    ) -> CutChange:
        """Return this rank's part of the change to one expert's matrix. Raises: ConfigError.
        Mutates: the copies"""
        where = f"{source.path}: {path}.{key[0]}.{key[1]}"
        matrix = self._divisions[f"{path}.{key[1]}"]
        cut = Cutting(where, matrix, self._dtype, copies).cut(parts)
        if not cut.is_low_rank:
            raise ConfigError("only low-rank changes of experts are supported.", where=where)
        return cut

    def _layer(self, source: AdapterSource, module: str) -> tuple[str, nn.Module, Target]:
        """Return the layer that a checkpoint module maps to, cached. Raises: ConfigError"""
        known = self._found.get(module)
        if known is None:
            known = self._searched(source, module)
            if isinstance(known[1], Linear):  # with few names; an Elsewhere accepts any name
                self._found[module] = known
        return known

    def _searched(self, source: AdapterSource, module: str) -> tuple[str, nn.Module, Target]:
        """Return the layer that a checkpoint module maps to. Raises: ConfigError"""
        target = map_name(self._weight_map, f"{module}{WEIGHT}")
        if target is not None and not target.is_tied:
            path = target.path.rpartition(".")[0]
            if path in self._linears:
                return path, self._linears[path], target
        words = [] if target is None else target.path.split(".")[:-1]
        layer: nn.Module | None = self._module
        for word in words:
            layer = None if layer is None else layer._modules.get(word)
            if isinstance(layer, AbsentStage | Experts):
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
        can_be = is_known or isinstance(layer, AbsentStage)
        if target is None or layer is None or not can_be:
            why = layer.no_adapters if isinstance(layer, Linear) else ""
            raise ConfigError(
                f"{module} is not a layer of this model that takes adapters"
                + (f": {why}." if why else "."),
                where=str(Path(source.path) / CONFIG),
                fix="use an adapter that was trained for this model, of its linear layers, token "
                "table and head.",
            )
        return path, layer, target

    def _verify(self, source: AdapterSource, module: str, change: ModuleChange) -> None:
        """Raises: ConfigError for what the flags do not allow"""
        if change.down is not None and change.down.shape[0] > self._spec.max_rank:
            raise ConfigError(
                f"the rank is {change.down.shape[0]}, and {self._spec.max_rank} is the most.",
                where=f"{source.path}: {module}",
                fix=f"start with --max-lora-rank {change.down.shape[0]}.",
            )
        has_bias = change.bias is not None and change.weight is None
        if (change.shift is not None or has_bias) and not self._spec.takes_bias:
            raise ConfigError(
                "the adapter has a bias.",
                where=f"{source.path}: {module}",
                fix="start with --enable-lora-bias.",
            )

    def _stored(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype).contiguous()


def _expert_of(where: str, layer: Experts, path: str, target: Target) -> Key:
    """Return the expert number and matrix name of a module. Raises: ConfigError"""
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
    """Return the tensors of a change, each with its location."""
    given = {one.name: getattr(change, one.name) for one in fields(change)}
    return [(f"{where}: {name}", t) for name, t in given.items() if isinstance(t, torch.Tensor)]


def _verify_finite(
    source: AdapterSource, weights: AdapterWeights, apart: Iterable[str], broken: str | None
) -> None:
    """Check modules that were not copied (`apart`), or all of them if a copy is `broken`, to name
    the tensor at fault. Raises: ConfigError naming a tensor with a number that is not finite"""
    for module in weights.changes if broken is not None else apart:
        for where, tensor in _numbers(f"{source.path}: {module}", weights.changes[module]):
            _check_finite(where, tensor)
    for where, one in (
        (f"{source.path}: {PROMPT_VECTORS}", weights.prompt),
        (f"{weights.added_file}: {INPUTS}", weights.added_inputs),
        (f"{weights.added_file}: {OUTPUTS}", weights.added_outputs),
    ):
        if one is not None:
            _check_finite(where, one)
    if broken is not None:
        raise ConfigError(
            "it holds numbers that are too large for the type that adapters are kept in.",
            where=broken,
            fix="start with another --lora-dtype.",
        )


def _check_finite(where: str, tensor: torch.Tensor) -> None:
    """Raises: ConfigError for a number that is not finite"""
    if not is_finite(tensor):
        raise ConfigError("it holds numbers that are not finite.", where=where)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all numbers are finite.

    Viewed as integers, infinities and NaN are the maximum of the positive numbers, and viewed as
    unsigned ones that of the negative numbers: two fast passes on one core.
    """
    infinity = INFINITY.get(tensor.dtype)
    if infinity is None or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    signed = tensor.contiguous().view(torch.int32 if tensor.itemsize == 4 else torch.int16).numpy()
    unsigned = signed.view(np.uint32 if tensor.itemsize == 4 else np.uint16)
    sign = 1 << (8 * tensor.itemsize - 1)
    return bool(signed.max() < infinity) and bool(unsigned.max() < infinity + sign)
