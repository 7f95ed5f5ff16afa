"""IA3, as PEFT saves it: vectors that scale the inputs or the outputs of modules.

    y = l * (x W^T + b)          of feed-forward modules  y = (l * x) W^T + b

Source: Liu et al., "Few-shot parameter-efficient fine-tuning is better and cheaper than in-context
learning", 2022.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.adapter_config import CONFIG
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights, ModuleChange
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.adapters._peft import saved_whole, tensors_of

VECTOR = ".ia3_l"


class Ia3Adapter(AdapterMethod):
    """Scales of the inputs or the outputs of linear layers."""

    info = Info(summary="IA3 as PEFT saves it")
    capabilities = frozenset({"changes_modules"})
    peft_types = ("IA3",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self._model = model

    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder. Raises: ConfigError naming the file and the key"""
        is_input = _matcher(folder, config)
        changes: dict[str, ModuleChange] = {}
        whole = {}
        for name, tensor in tensors_of(folder).items():
            module, found, rest = name.partition(VECTOR)
            if not found:
                whole[name] = tensor
                continue
            if rest not in ("", ".weight", ".default") or tensor.numel() != max(tensor.shape):
                raise ConfigError(
                    f"{list(tensor.shape)} is not the shape of a vector.", where=f"{folder}: {name}"
                )
            vector = tensor.flatten()
            if is_input(module):
                changes[module] = ModuleChange(input_scale=vector)
            else:
                changes[module] = ModuleChange(output_scale=vector)
        changes |= saved_whole(folder, whole)
        return AdapterWeights(changes=changes)


def _matcher(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return the predicate of feed-forward modules: names that end in a listed name, or match the
    pattern, as in PEFT. Raises: ConfigError"""
    key = "feedforward_modules"
    given = config.get(key) or ()
    if isinstance(given, str):
        try:
            pattern = re.compile(given)
        except re.error as error:
            raise ConfigError(
                f"{given!r} is not a pattern: {error}.", where=f"{folder / CONFIG}: {key}"
            ) from error
        return lambda module: pattern.fullmatch(module) is not None
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise ConfigError(
            f"{given!r} is neither a list of modules nor a pattern.",
            where=f"{folder / CONFIG}: {key}",
        )
    names = tuple(given)
    return lambda module: module.endswith(names)
