"""Facts about a checkpoint's model type, declared by the plugin that runs it.

Core names no model type: `facts_of(config)` looks for an entry of the kind `model_type`. Imports
the module of that one entry, and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from dovetail import registry
from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.model_facts import ModelFacts, ModelFactsTable

KIND = "model_type"
TABLE = "transformers"
"""The entry for the types that the model plugin of this name runs."""

WHERE = "config.json: model_type"
ALIBI = "alibi"
_USUAL = ModelFacts()
Facts = TypeVar("Facts", ModelFacts, ModelFactsTable)


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of a config.json's model type; default facts if the type is unknown.

    Raises: AmbiguousPlugin if two packages declare the type, BrokenPlugin.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return _USUAL
    names = registry.names(KIND)
    if model_type in names and model_type != TABLE:
        return _value(model_type, ModelFacts)
    table = _value(TABLE, ModelFactsTable).types if TABLE in names else {}
    return table.get(model_type, _USUAL)


def media_see_all(config: Mapping[str, Any]) -> bool:
    """Return whether the tokens of an image attend to each other in both directions.
    Raises: as `facts_of`"""
    rule = facts_of(config).media_see_all
    if isinstance(rule, str):
        return bool((config.get("text_config") or {}).get(rule) == "vision")
    return rule


def other_names(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return alternative setting names of a config.json's model type -> the type's own names.
    Raises: as `facts_of`"""
    if TABLE not in registry.names(KIND):
        return {}
    return _value(TABLE, ModelFactsTable).other_names.get(str(config.get("model_type")), {})


def older_kinds() -> Mapping[str, str]:
    """Return older names of layer types -> their current names. Raises: as `facts_of`"""
    names = registry.names(KIND)
    return _value(TABLE, ModelFactsTable).older_kinds if TABLE in names else {}


def processors() -> Mapping[str, str]:
    """Return classes of media processors that plugins replace -> the "module:Class" to use. Raises:
    as `facts_of`"""
    names = registry.names(KIND)
    return _value(TABLE, ModelFactsTable).processors if TABLE in names else {}


def has_rotary(config: Mapping[str, Any]) -> bool:
    """Return whether the model uses rotary embeddings; its config may turn them off."""
    has_none = config.get("position_embedding_type") == "nope"
    return facts_of(config).positions == "rotary" and not uses_alibi(config) and not has_none


def uses_alibi(config: Mapping[str, Any]) -> bool:
    """Return whether attention has ALiBi biases. Some types always have them, some by a setting,
    some if a setting that RoPE needs is missing."""
    facts = facts_of(config)
    needed = facts.alibi_without
    lacks = bool(needed) and config.get(needed) is None
    is_named = bool(config.get("alibi")) or config.get("position_embedding_type") == ALIBI
    return facts.positions == ALIBI or is_named or lacks


def has_position_bias(config: Mapping[str, Any]) -> bool:
    """Return whether attention adds biases by relative position, from a table."""
    return facts_of(config).has_position_bias


def unused_positions(config: Mapping[str, Any]) -> int:
    """Return how many rows of the position table precede that of the first token."""
    field = facts_of(config).counts_from
    last = config.get(field) if field else None
    return last + 1 if isinstance(last, int) else 0


def _value(name: str, wanted: type[Facts]) -> Facts:
    """Return the value of an entry. Raises: as `registry.load`, BrokenPlugin for another type."""
    value = registry.admin.value_of(KIND, name, where=WHERE)
    if isinstance(value, wanted):
        return value
    raise BrokenPlugin(
        f"its value is {type(value).__name__}, not {wanted.__name__}.",
        where=f"{KIND} {name}",
        fix="see dovetail.interfaces.data.model_facts for what a model type declares.",
    )
