"""Conversion: transformers' tensors made of those that a checkpoint stores cut or joined otherwise.

transformers keeps by model which tensors it cuts, joins and permutes while it reads a checkpoint;
its own operations run here, on one group of tensors at a time. Experts are left out: their layers
take the tensors of single experts. Source: transformers.conversion_mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Chunk, Concatenate, PermuteForRope, WeightConverter

from dovetail.errors import ConfigError
from dovetail_plugins.models._hf_swap import SwappedExperts

OPERATIONS = (Chunk, Concatenate, PermuteForRope)
"""Operations that only need the tensors and the config."""


class Conversion:
    """Applies rules of one model to the tensors of its checkpoint; the others pass."""

    def __init__(self, config: Any, rules: list[WeightConverter]) -> None:
        self._config = config
        self._rules = rules

    def __call__(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors as transformers' model has them. Raises: ConfigError if a part of a
        tensor is missing"""
        waiting: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors:
            rule, target, pattern = self._matched(name)
            if rule is None:
                yield name, tensor
                continue
            parts = waiting.setdefault(target, {})
            parts[pattern] = tensor
            if len(parts) == len(rule.source_patterns):
                yield from self._converted(rule, target, waiting.pop(target))
        if waiting:
            raise ConfigError(
                f"the checkpoint has parts of {', '.join(sorted(waiting)[:4])}, and not all.",
                where="checkpoint",
                fix="check that its files are complete.",
            )

    def _matched(self, name: str) -> tuple[WeightConverter | None, str, str]:
        """Return the rule for a tensor, the new name of its first result, and which of its sources
        the tensor is."""
        for rule in self._rules:
            target, pattern = rule.rename_source_key(name)
            if pattern is not None:
                return rule, target, pattern
        return None, name, ""

    def _converted(
        self, rule: WeightConverter, target: str, parts: dict[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a rule's results from all its sources."""
        tensors: dict[str, Any] = {p: [parts[p]] for p in rule.source_patterns}
        for operation in rule.operations:
            tensors = operation.convert(
                tensors,
                source_patterns=rule.source_patterns,
                target_patterns=rule.target_patterns,
                full_layer_name=target,
                config=self._config,
                model=None,
                missing_keys=None,
            )
        before, _, behind = target.partition(rule.target_patterns[0])
        for name, tensor in tensors.items():
            yield before + name + behind, tensor


def conversion_of(model: Any, trunk: nn.Module) -> Conversion | None:
    """Return what converts a model's tensors, of which `trunk` is loaded; None if the checkpoint
    already has them. Raises: ConfigError for rules that are not known here"""
    rules = []
    parameters = [path for path, _ in trunk.named_parameters() if not _is_of_experts(trunk, path)]
    for rule in get_model_conversion_mapping(model, add_legacy=False):
        if not isinstance(rule, WeightConverter):
            continue
        words = [target.replace("\\1", "") for target in rule.target_patterns]
        parameter = next((p for p in parameters for word in words if word and word in p), None)
        if parameter is None:
            continue
        is_known = all(isinstance(operation, OPERATIONS) for operation in rule.operations)
        if not is_known or any("*" in source for source in rule.source_patterns):
            raise ConfigError(
                f"its {parameter} is stored in pieces that only transformers puts together."
            )
        rules.append(rule)
    return Conversion(model.config, rules) if rules else None


def _is_of_experts(trunk: nn.Module, path: str) -> bool:
    return isinstance(trunk.get_submodule(path.rpartition(".")[0]), SwappedExperts)
