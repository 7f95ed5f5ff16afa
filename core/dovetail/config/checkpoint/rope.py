"""--rope-theta and --rope-scaling, laid over a checkpoint's settings in the spelling these use.

Newer files have `rope_parameters` (one object, or one per attention type, of which full attention's
is meant), older ones `rope_theta` and `rope_scaling`. Knows no formula: `layers.rotary` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.model_facts import has_rotary
from dovetail.errors import ConfigError

WHERE = "--rope-scaling"
NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""The numbers without which a rule means nothing."""
DEFAULT_RULE = "default"
OLDER_NAMES = {"su": "longrope", "mrope": DEFAULT_RULE}

_OWN = ("rope_theta", "partial_rotary_factor")
"""Entries of rope_parameters that are the embedding's, not its rule's."""


def with_rope(
    config: Mapping[str, Any], theta: float | None, scaling: Mapping[str, Any]
) -> dict[str, Any]:
    """Return config.json's content with the base and the rule replaced where they are given.

    Raises: ConfigError for an unknown rule, a missing number, or a model without rotary embedding.
    """
    if theta is None and not scaling:
        return dict(config)
    if not has_rotary(config):
        raise ConfigError(
            f"{config.get('model_type')} models have no rotary embedding.",
            where=WHERE if scaling else "--rope-theta",
            fix="leave the flag out.",
        )
    rule = rule_of(scaling) if scaling else None
    if isinstance(config.get("rope_parameters"), Mapping):
        return _newer(config, theta, rule)
    return _older(config, theta, rule)


def rule_of(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule with its name under "rope_type"; "type" is the older word for that.

    Raises: ConfigError
    """
    rule = dict(scaling)
    older = rule.pop("type", None)
    name = rule.get("rope_type", older)
    if name is None or older not in (None, name):
        raise ConfigError(
            "names no rope_type." if name is None else f'"{older}" and "{name}" are two rules.',
            where=WHERE,
            fix='e.g. --rope-scaling \'{"rope_type": "yarn", "factor": 4.0}\'.',
        )
    registry.find("rope_type", str(name), where=f"{WHERE}.rope_type")
    rule["rope_type"] = str(name)
    for key in NEEDED.get(rule["rope_type"], ()):
        number = rule.get(key)
        if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
            raise ConfigError(
                f"{rule['rope_type']} needs a number above 0, not {number!r}.",
                where=f"{WHERE}.{key}",
                fix=f"add {WHERE}.{key} NUMBER.",
            )
    return rule


def rope_rules(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the rule of each registered rope_type that a config names, as "module:function"."""
    known = registry.names("rope_type")
    named = {DEFAULT_RULE, *(rule_name(rule) for rule in _rules(config))}
    return {name: registry.value_of("rope_type", name) for name in named if name in known}


def rule_name(rule: Mapping[str, Any]) -> str:
    """Return the rope_type that a config's object names, by its present name."""
    name = str(rule.get("rope_type") or rule.get("type") or DEFAULT_RULE)
    return OLDER_NAMES.get(name, name)


def _rules(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a config that may name a rule: one, or one for each layer type."""
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if isinstance(found, Mapping):
            yield found
            yield from (value for value in found.values() if isinstance(value, Mapping))


def _newer(
    config: Mapping[str, Any], theta: float | None, rule: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the config with other rope_parameters."""
    stored: Mapping[str, Any] = config["rope_parameters"]
    is_nested = isinstance(stored.get("full_attention"), Mapping)
    own = stored["full_attention"] if is_nested else stored
    settings = (
        dict(own) if rule is None else {key: own[key] for key in _OWN if key in own} | dict(rule)
    )
    if theta is not None:
        settings["rope_theta"] = theta
    left = {key: value for key, value in config.items() if key != "rope_scaling"}
    if theta is not None and "rope_theta" in left:
        left["rope_theta"] = theta
    return left | {
        "rope_parameters": {**stored, "full_attention": settings} if is_nested else settings
    }


def _older(
    config: Mapping[str, Any], theta: float | None, rule: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the config with another rope_theta and rope_scaling."""
    renamed = dict(config)
    if rule is not None:
        renamed["rope_scaling"] = dict(rule)
    if theta is None:
        return renamed
    scaling = renamed.get("rope_scaling")
    if isinstance(scaling, Mapping) and "rope_theta" in scaling:
        renamed["rope_scaling"] = {**scaling, "rope_theta": theta}
    return renamed | {"rope_theta": theta}
