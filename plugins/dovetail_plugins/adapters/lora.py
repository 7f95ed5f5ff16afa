"""LoRA and its variants, as PEFT saves them: rsLoRA, DoRA, biases, modules saved whole and tokens
that were trained one by one; and vLLM's file of added tokens next to them.

    y = x W^T + s (x A^T) B^T,   s = alpha / r, or alpha / sqrt(r) with use_rslora

Sources: Hu et al., "LoRA", 2021; Kalajdzievski, "rsLoRA", 2023; Liu et al., "DoRA", 2024; of rope
scaling Chen et al., "LongLoRA", 2024.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dovetail.config.checkpoint.adapter_config import CONFIG
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights, ModuleChange
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.adapters._peft import (
    ADDED_INPUTS,
    ADDED_OUTPUTS,
    ModuleChanges,
    Tensors,
    named,
    read_added,
    read_file,
    setting,
)
from dovetail_plugins.load_formats._safetensors_file import WholeFile

DOWN, UP = "lora_A", "lora_B"
PAIR = {DOWN, UP}
DOWN_TABLE, UP_TABLE = "lora_embedding_A", "lora_embedding_B"
MAGNITUDE, SAVED, BASE = "lora_magnitude_vector", "modules_to_save", "base_layer"
ORIGINAL = ".original_module."
"""PEFT's copy of the original of a module that `modules_to_save` replaced (tables enlarged)."""
ROWS, INDICES = "token_adapter.trainable_tokens_delta", "trainable_token_indices"
TIES = "ensure_weight_tying"
TABLE_NAMES = ("embed_tokens", "embedding", "embeddings", "wte", "word_embeddings", "embed_in")
"""Names of token tables, to which a list of indices without a module's name refers."""
OF_EXPERTS = ("gate_up_proj", "down_proj")
"""Parameters that hold all experts, in the order in which PEFT wraps a module for each."""
NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names of the number of experts in config.json."""


MAX_LAYOUTS = 64


class LoraAdapter(AdapterMethod):
    """Low-rank changes of linear layers and token tables."""

    info = Info(summary="LoRA, rsLoRA and DoRA as PEFT saves them")
    capabilities = frozenset({"changes_modules"})
    peft_types = ("LORA",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self._model = model
        self._layouts: OrderedDict[Hashable, None] = OrderedDict()
        """Those whose changes were found without a fault."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Make `open` use a subclass's own `read`."""
        super().__init_subclass__(**settings)
        if "read" in vars(cls) and "open" not in vars(cls):
            cls.open = AdapterMethod.open  # type: ignore[method-assign]

    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder. Raises: ConfigError naming the file and the key"""
        found = LoraAdapter.open(self, folder, config)
        if found.content is not None:
            found.content.read()
        return found

    def open(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder, whose file is read when its numbers are needed. Raises:
        ConfigError naming the file and the key"""
        self._verify(folder, config)
        file = read_file(folder)
        factor, added = self._rope_factor(folder, config), read_added(folder)
        if added is not None:
            if isinstance(file, WholeFile):
                file.read()
            return AdapterWeights(
                changes=self._changes(folder, config, file),
                rope_factor=factor,
                added_inputs=added[1][ADDED_INPUTS],
                added_outputs=added[1].get(ADDED_OUTPUTS),
                added_file=str(added[0]),
            )
        if not isinstance(file, WholeFile):
            return AdapterWeights(changes=self._changes(folder, config, file), rope_factor=factor)
        layout = json.dumps(config, sort_keys=True), file.header, len(file.memory)
        changes = ModuleChanges(partial(self._changes, folder, config, file))
        if layout not in self._layouts:
            changes.find()
            self._layouts[layout] = None
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return AdapterWeights(changes=changes, rope_factor=factor, layout=layout, content=file)

    def _rope_factor(self, folder: Path, config: Mapping[str, Any]) -> float | None:
        """Return the linear rope scaling that an adapter was trained with, None for the model's
        own: from `rope_scaling`, or the ratio of `context_length` to the model's length, as
        LongLoRA trains. Raises: ConfigError"""
        scaling = setting(folder, config, "rope_scaling", dict, {})
        if scaling:
            kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
            is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
            if kind != "linear" or not is_number or not factor > 0:
                raise ConfigError(
                    f"{scaling} is not a linear scaling with a factor.",
                    where=f"{folder / CONFIG}: rope_scaling",
                )
            return float(factor)
        length = setting(folder, config, "context_length", int, 0)
        facts = self._model.hf_config
        trained = facts.get("max_position_embeddings") or self._model.max_position_tokens
        return float(math.ceil(length / trained)) if length > trained else None

    def _changes(
        self, folder: Path, config: Mapping[str, Any], file: WholeFile | Tensors
    ) -> dict[str, ModuleChange]:
        """Return the changes in a file's tensors, by module. The file is read if there is more to
        them than pairs of matrices. Raises: ConfigError"""
        modules: dict[str, Tensors] = defaultdict(dict)
        names, terms = _target_parameters(folder, config), _Terms(folder, config)
        for name, tensor in named(file).items():
            if ORIGINAL in name:
                continue
            module, part = _split(name)
            own = _parameters_of(module, names) if names else ()
            if own:
                module = f"{module}.{own[-1 - min(name.count(BASE), len(own) - 1)]}"
            modules[module][part] = tensor
        has_others = not all(parts.keys() <= PAIR for parts in modules.values())
        if has_others and isinstance(file, WholeFile):
            file.read()
        changes: dict[str, ModuleChange] = {}
        for module, parts in modules.items():
            experts, _, leaf = module.rpartition(".") if names else ("", "", "")
            if names and leaf in _parameters_of(experts, names):
                changes |= self._of_experts(terms, module, parts)
            else:
                changes[module] = _change(terms, module, parts)
        return changes

    def _of_experts(self, terms: _Terms, module: str, parts: Tensors) -> dict[str, ModuleChange]:
        """Return the changes in the tensors of a parameter [X, O, I], expert by expert: A is
        [X r, I], B is [O, r X]. The first matrix of transformers' LongCat Flash also has unused
        rows, of experts that do not compute. Raises: ConfigError"""
        facts = self._model.hf_config
        num_experts = next((int(facts[key]) for key in NUM_EXPERTS if facts.get(key)), 0)
        is_down = module.endswith("down_proj")
        count = num_experts + (0 if is_down else int(facts.get("zero_expert_num") or 0))
        joined = _change(terms, module, parts)
        down, up = joined.down, joined.up
        is_pair = joined.shift is None and count > 0
        if down is None or up is None or not is_pair or down.shape[0] % count:
            raise ConfigError(
                f"it is not a low-rank change of {count} experts.",
                where=f"{terms.folder}: {module}",
            )
        rank = down.shape[0] // count
        experts, _, leaf = module.rpartition(".")
        scale = terms.scale(module, rank)
        downs, ups = down.view(count, rank, -1), up.view(up.shape[0], rank, count)
        return {
            f"{experts}.{number}.{leaf}": ModuleChange(
                down=downs[number], up=ups[:, :, number], scale=scale
            )
            for number in range(num_experts)
        }

    def _verify(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Raises: ConfigError for unsupported settings of the config"""
        for key, what in NOT_DONE.items():
            if config.get(key):
                raise ConfigError(f"{what} is not supported.", where=f"{folder / CONFIG}: {key}")
        start = config.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
            raise ConfigError(
                f"{start}: such training changes the model's own weights too, and the file holds "
                "the adapter's alone.",
                where=f"{folder / CONFIG}: init_lora_weights",
                fix="save it as plain LoRA: save_pretrained(..., "
                "path_initial_model_for_weight_conversion=FOLDER) of PEFT.",
            )


class _Terms:
    """The settings of adapter_config.json for all modules."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Raises: ConfigError naming the key"""
        self.folder, self.config = folder, config
        self.is_tied: bool = setting(folder, config, TIES, bool, False)
        self._alpha: float = setting(folder, config, "lora_alpha", float, 8)
        self._alphas: dict[str, Any] = setting(folder, config, "alpha_pattern", dict, {})
        self._is_root: bool = setting(folder, config, "use_rslora", bool, False)

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of a module's product. Raises: ConfigError"""
        alpha = self._alpha
        for pattern, own in self._alphas.items():
            if _matches(self.folder, pattern, module):
                if isinstance(own, bool) or not isinstance(own, int | float):
                    where = f"{self.folder / CONFIG}: alpha_pattern: {pattern}"
                    raise ConfigError(f"{own!r} is not a number.", where=where)
                alpha = own
                break
        return float(alpha) / (math.sqrt(rank) if self._is_root else rank)


def _change(terms: _Terms, module: str, parts: Tensors) -> ModuleChange:
    """Return the change in the tensors of one module. Raises: ConfigError. Mutates: parts"""
    if parts.keys() == PAIR:
        return ModuleChange(is_tied=terms.is_tied, **_pair(terms, module, parts[DOWN], parts[UP]))
    change = ModuleChange(
        weight=parts.pop("weight", None), bias=parts.pop("bias", None), is_tied=terms.is_tied
    )
    down, up = parts.pop(DOWN, None), parts.pop(UP, None)
    if DOWN_TABLE in parts:  # a token table: a lookup returns a column of A
        down, up = parts.pop(DOWN_TABLE), parts.pop(UP_TABLE, None)
    magnitude, shift = parts.pop(MAGNITUDE, None), parts.pop(f"{UP}.bias", None)
    if ROWS in parts:
        change = _with_rows(terms.folder, terms.config, module, change, parts.pop(ROWS))
    if parts or (down is None) != (up is None):
        rest = ", ".join(parts) or (UP if up is None else DOWN)
        raise ConfigError(
            f"{rest} is without its pair, or not known.", where=f"{terms.folder}: {module}"
        )
    if down is None or up is None:
        return change
    pair = _pair(terms, module, down, up)
    return replace(
        change,
        magnitude=None if magnitude is None else magnitude.flatten(),
        shift=None if shift is None else shift * pair["scale"],
        **pair,
    )


def _pair(terms: _Terms, module: str, down: torch.Tensor, up: torch.Tensor) -> dict[str, Any]:
    """Return two matrices as fields of a change. Raises: ConfigError"""
    if down.dim() != 2 or up.dim() != 2 or up.shape[1] != down.shape[0]:
        raise ConfigError(
            f"A {list(down.shape)} and B {list(up.shape)} do not fit each other.",
            where=f"{terms.folder}: {module}",
        )
    return {"down": down, "up": up, "scale": terms.scale(module, down.shape[0])}


CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations (`init_lora_weights`) that take the first product out of the model's weights."""
NOT_DONE = {
    "arrow_config": "routing among adapters (Arrow)",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
    "use_bdlora": "BD-LoRA",
    "use_qalora": "QA-LoRA",
    "alora_invocation_tokens": "LoRA that begins at an invocation (aLoRA)",
    "layer_replication": "repetition of layers",
}


def _with_rows(
    folder: Path, config: Mapping[str, Any], module: str, change: ModuleChange, rows: torch.Tensor
) -> ModuleChange:
    """Return a change with the rows of tokens that were trained one by one: in PEFT they replace
    the table's rows, and the head's too if it shares the table. Raises: ConfigError. Shapes: rows
    [m, E]"""
    where, given = f"{folder / CONFIG}: {INDICES}", config.get(INDICES)
    if isinstance(given, Mapping):
        given = next((ids for name, ids in given.items() if module.endswith(name)), None)
    elif module.rpartition(".")[2] not in TABLE_NAMES:
        given = None
    if not isinstance(given, list) or not all(type(i) is int and 0 <= i < 2**31 for i in given):
        raise ConfigError(f"it does not say which tokens of {module} were trained.", where=where)
    if rows.dim() != 2 or len(rows) != len(given):
        raise ConfigError(
            f"it names {len(given)} tokens, and {list(rows.shape)} is the shape of their vectors.",
            where=where,
        )
    return replace(change, row_ids=torch.tensor(given), rows=rows, is_tied=True)


def _target_parameters(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of parameters that were trained apart from modules. Raises: ConfigError"""
    names = setting(folder, config, "target_parameters", list, [])
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{names!r} is not a list of names.", where=f"{folder / CONFIG}: target_parameters"
        )
    return tuple(names)


def _parameters_of(module: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return which parameters of experts a module has been wrapped for, the innermost first."""
    return (
        tuple(
            leaf for leaf in OF_EXPERTS if any(f".{module}.{leaf}".endswith(f".{n}") for n in names)
        )
        if module.endswith("experts")
        else ()
    )


def _split(name: str) -> tuple[str, str]:
    """Return a tensor's module, and which part of it the tensor is."""
    module, _, part = name.removesuffix(".weight").rpartition(".")
    if part in PAIR and BASE not in module and SAVED not in module and "token_" not in module:
        return module, part  # as nearly all are named
    name = name.replace(f".{BASE}.", ".").replace(f".{SAVED}.", ".")
    if not name.endswith(f".{ROWS}"):
        name = name.replace(".token_adapter.", ".")
    for part in (f"{UP}.bias", DOWN, UP, DOWN_TABLE, UP_TABLE, MAGNITUDE, ROWS):
        module, found, rest = name.partition(f".{part}")
        if found and rest in ("", ".weight", ".default", ".default.weight"):
            return module, part
    module, _, part = name.rpartition(".")
    return module.removesuffix(".default"), part


def _matches(folder: Path, pattern: str, module: str) -> bool:
    """Return whether a key of `alpha_pattern` means a module: its end, as PEFT reads them.

    Raises: ConfigError
    """
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error as error:
        raise ConfigError(
            f"{pattern!r} is not a pattern: {error}.", where=f"{folder / CONFIG}: alpha_pattern"
        ) from error
