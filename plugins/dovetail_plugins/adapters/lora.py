"""LoRA and its kin, as PEFT saves them: rsLoRA, DoRA, biases, and modules saved whole.

    y = x W^T + s (x A^T) B^T,   s = alpha / r, or alpha / sqrt(r) with use_rslora

Sources: Hu et al., "LoRA", 2021; Kalajdzievski, "rsLoRA", 2023; Liu et al., "DoRA", 2024.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights, ModuleChange
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail_plugins.adapters._peft import CONFIG, setting, tensors_of

DOWN, UP = "lora_A", "lora_B"
DOWN_TABLE, UP_TABLE = "lora_embedding_A", "lora_embedding_B"
MAGNITUDE, SAVED, BASE = "lora_magnitude_vector", "modules_to_save", "base_layer"
Parts = dict[str, torch.Tensor]


class LoraAdapter(AdapterMethod):
    """Low-rank changes of linear layers and token tables."""

    info = Info(summary="LoRA, rsLoRA and DoRA as PEFT saves them")
    capabilities = frozenset({"changes_modules"})
    peft_types = ("LORA",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self._model = model

    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder. Raises: ConfigError naming the file and the key"""
        self._verify(folder, config)
        modules: dict[str, Parts] = defaultdict(dict)
        for name, tensor in tensors_of(folder).items():
            module, part = _split(name)
            modules[module][part] = tensor
        changes = {
            module: self._change(folder, config, module, parts) for module, parts in modules.items()
        }
        return AdapterWeights(changes=changes)

    def _verify(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Raises: ConfigError for what the config asks for that is not done here"""
        for key, what in _NOT_DONE.items():
            if config.get(key):
                raise ConfigError(f"{what} is not supported.", where=f"{folder / CONFIG}: {key}")

    def _change(
        self, folder: Path, config: Mapping[str, Any], module: str, parts: Parts
    ) -> ModuleChange:
        """Return what the tensors of one module mean. Raises: ConfigError"""
        where = f"{folder}: {module}"
        change = ModuleChange(weight=parts.pop("weight", None), bias=parts.pop("bias", None))
        down, up = parts.pop(DOWN, None), parts.pop(UP, None)
        if DOWN_TABLE in parts:  # a token table: what is looked up is a column of A
            down, up = parts.pop(DOWN_TABLE), parts.pop(UP_TABLE, None)
        magnitude, shift = parts.pop(MAGNITUDE, None), parts.pop(f"{UP}.bias", None)
        if parts or (down is None) != (up is None):
            rest = ", ".join(parts) or (UP if up is None else DOWN)
            raise ConfigError(f"{rest} is without its pair, or not known.", where=where)
        if down is None or up is None:
            return change
        rank = down.shape[0]
        if down.dim() != 2 or up.dim() != 2 or up.shape[1] != rank:
            raise ConfigError(
                f"A {list(down.shape)} and B {list(up.shape)} do not fit each other.", where=where
            )
        scale = self._scale(folder, config, module, rank)
        if shift is not None:
            shift = shift * scale
        return replace(
            change,
            down=down,
            up=up,
            scale=scale,
            magnitude=None if magnitude is None else magnitude.flatten(),
            shift=shift,
        )

    def _scale(self, folder: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
        """Return what the product of a module is multiplied by."""
        alphas = setting(folder, config, "alpha_pattern", dict, {})
        alpha = setting(folder, config, "lora_alpha", float, 8)
        alpha = next((a for pattern, a in alphas.items() if _matches(pattern, module)), alpha)
        is_root = setting(folder, config, "use_rslora", bool, False)
        return float(alpha) / (math.sqrt(rank) if is_root else rank)


_NOT_DONE = {
    "use_qalora": "QA-LoRA",
    "alora_invocation_tokens": "LoRA that begins at an invocation (aLoRA)",
    "layer_replication": "repetition of layers",
    "target_parameters": "LoRA of parameters that are not modules",
    "trainable_token_indices": "training of single tokens",
}


def _split(name: str) -> tuple[str, str]:
    """Return a tensor's module and what it is of it."""
    name = name.replace(f".{BASE}.", ".").replace(f".{SAVED}.", ".")
    for part in (f"{UP}.bias", DOWN, UP, DOWN_TABLE, UP_TABLE, MAGNITUDE):
        module, found, rest = name.partition(f".{part}")
        if found and rest in ("", ".weight", ".default", ".default.weight"):
            return module, part
    module, _, part = name.rpartition(".")
    return module.removesuffix(".default"), part


def _matches(pattern: str, module: str) -> bool:
    """Return whether a key of `alpha_pattern` means a module: its end, as PEFT reads them."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
