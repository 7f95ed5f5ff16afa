"""RoPE settings of a checkpoint, overridden by --rope-theta and --rope-scaling.

Newer files have `rope_parameters`: one object, or one per layer type; full attention's is then
used. Older files have `rope_theta` and `rope_scaling`. If both exist, `rope_scaling` wins, as in
transformers. `rope_of` is the only reader of both. Contains no formula; `layers.rotary` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.model_facts import facts_of, has_rotary
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
"""Numbers that each rope_type requires."""
DEFAULT_RULE = "default"
OLDER_NAMES = {"su": "longrope", "mrope": DEFAULT_RULE}

_OWN = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Entries of rope_parameters that belong to the embedding, not to its rule."""


FULL = "full_attention"
_NAMES = ("rope_scaling", "rope_parameters")
TRAINED = "original_max_position_embeddings"
"""The length before scaling. If config.json itself has it, that one wins (Phi-3)."""


def rope_of(config: Mapping[str, Any], kind: str | None = None) -> Mapping[str, Any]:
    """Return the RoPE settings of a config: all of them, or those for one layer type if each type
    has its own."""
    stated = (config.get(name) for name in _NAMES)
    found: Mapping[str, Any] = next((one for one in stated if isinstance(one, Mapping)), {})
    own = found.get(kind) if kind is not None else None
    return own if isinstance(own, Mapping) else found


def one_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with only `rope_parameters` if it has these and `rope_scaling`."""
    scaling, stored = (config.get(name) for name in _NAMES)
    if not isinstance(stored, Mapping) or "rope_scaling" not in config:
        return config
    left = {key: value for key, value in config.items() if key != "rope_scaling"}
    return left | {"rope_parameters": _laid(stored, scaling)} if scaling else left


def overridden_rope(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the RoPE settings of `more` into a config; return the rest of `more`.

    If the rule changes, the old rule's numbers are dropped; `rope_theta` and
    `partial_rotary_factor` stay unless `more` has them. Mutates: config.
    """
    names = facts_of({**config, **more}).attribute_map
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in more or names.get(name) in more:
            _forget(config, name)
    for key in (name for name in reversed(_NAMES) if name in more):
        stored = rope_of(one_rope(config))
        given = _checked(more[key], key)
        rope_key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
        for name in _NAMES:
            config.pop(name, None)
        config |= {rope_key: _laid(stored, given), **_trained(config, given or {})}
    return {key: value for key, value in more.items() if key not in _NAMES}


def _checked(given: Any, key: str) -> Mapping[str, Any] | None:
    """Return an override's RoPE settings. Raises: ConfigError unless it is an object or null."""
    if given is None or isinstance(given, Mapping):
        return given
    raise ConfigError(
        f"{given!r} is not an object.",
        where=f"--hf-overrides.{key}",
        fix='give e.g. {"rope_type": "yarn", "factor": 4.0}, or null for no scaling.',
    )


def _trained(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the override's length before scaling as a top-level setting, if config has one."""
    stated = rope_of({"rope_parameters": given}, FULL).get(TRAINED)
    is_own = TRAINED in config or TRAINED in facts_of(config).defaults
    return {TRAINED: stated} if is_own and stated is not None else {}


def _forget(config: dict[str, Any], name: str) -> None:
    """Remove a number from the RoPE settings of full-attention layers. Mutates: config."""
    for key in _NAMES:
        stored = config.get(key)
        if isinstance(stored, Mapping):
            nested = stored.get(FULL)
            inner = {FULL: _without(nested, name)} if isinstance(nested, Mapping) else {}
            config[key] = {**_without(stored, name), **inner}


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def _laid(stored: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return RoPE settings merged with others; None means no rule. If each layer type has its own,
    settings without a type apply to full attention."""
    kinds = [key for key, value in (given or {}).items() if isinstance(value, Mapping)]
    if not kinds and not isinstance(stored.get(FULL), Mapping):
        return _rule_over(stored, given)
    if given is None or not kinds:
        return {**stored, FULL: _rule_over(stored[FULL], given)}
    plain = _embedding(stored)
    laid = {key: _rule_over(_part(stored, key, plain), given[key]) for key in kinds}
    return {**stored, **given, **laid}


def _part(stored: Mapping[str, Any], kind: str, plain: Mapping[str, Any]) -> Mapping[str, Any]:
    own = stored.get(kind)
    return own if isinstance(own, Mapping) else plain


def _rule_over(stored: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a rule merged with another's numbers, or replaced if the other names another rule."""
    if given is None:
        return _embedding(stored)
    if not given.get("rope_type") and not given.get("type"):
        return {**stored, **given}
    is_same = rule_name(given) == rule_name(stored)
    return {**(_without(stored, "rope_type", "type") if is_same else _embedding(stored)), **given}


def _embedding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that do not depend on the rule."""
    return {key: settings[key] for key in _OWN if key in settings}


def with_rope(
    config: Mapping[str, Any], theta: float | None, scaling: Mapping[str, Any]
) -> dict[str, Any]:
    """Return config.json's content with theta and rule replaced if they are given.

    Raises: ConfigError for an unknown rule, a missing number, or a model without RoPE.
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
    config = {**config, **_trained(config, rule or {})}
    if isinstance(config.get("rope_parameters"), Mapping):
        return _newer(config, theta, rule)
    return _older(config, theta, rule)


def rule_of(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule with its name under "rope_type"; "type" is the older key.

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
    """Return rope_type -> "module:function" for the registered rules that a config names."""
    known = registry.names("rope_type")
    named = {DEFAULT_RULE, *(rule_name(rule) for rule in _rules(config))}
    return {name: registry.admin.value_of("rope_type", name) for name in named if name in known}


def rule_name(rule: Mapping[str, Any]) -> str:
    """Return the rope_type of an object in the config, by its current name."""
    name = str(rule.get("rope_type") or rule.get("type") or DEFAULT_RULE)
    return OLDER_NAMES.get(name, name)


def _rules(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a config that may name a rule: one, or one per layer type."""
    for key in _NAMES:
        found = config.get(key)
        if isinstance(found, Mapping):
            yield found
            yield from (value for value in found.values() if isinstance(value, Mapping))


def _newer(
    config: Mapping[str, Any], theta: float | None, rule: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the config with rope_parameters replaced."""
    stored: Mapping[str, Any] = config["rope_parameters"]
    is_nested = isinstance(stored.get(FULL), Mapping)
    own = stored[FULL] if is_nested else stored
    settings = dict(own) if rule is None else _embedding(own) | dict(rule)
    if theta is not None:
        settings["rope_theta"] = theta
    left = {key: value for key, value in config.items() if key != "rope_scaling"}
    if theta is not None and "rope_theta" in left:
        left["rope_theta"] = theta
    return left | {"rope_parameters": {**stored, FULL: settings} if is_nested else settings}


def _older(
    config: Mapping[str, Any], theta: float | None, rule: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the config with rope_theta and rope_scaling replaced."""
    renamed = dict(config)
    if rule is not None:
        renamed["rope_scaling"] = _embedding(rope_of(config)) | dict(rule)
    if theta is None:
        return renamed
    scaling = renamed.get("rope_scaling")
    if isinstance(scaling, Mapping) and "rope_theta" in scaling:
        renamed["rope_scaling"] = {**scaling, "rope_theta": theta}
    return renamed | {"rope_theta": theta}
