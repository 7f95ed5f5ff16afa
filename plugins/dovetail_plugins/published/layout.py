"""Published: how a checkpoint of a class that is not served is read as one of a class that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.errors import ConfigError

Json = dict[str, Any]
Pairs = tuple[tuple[str, str], ...]

CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published class.

    `config` makes the config.json of the serving class from the published one, and raises
    ConfigError for one that no class serves. `prefixes`, `renames` and `ignored` map its names of
    tensors, as in `interfaces.model.WeightMap`. `lacks` is what is not served of the model.
    """

    config: Callable[[Json], Json]
    prefixes: Pairs = ()
    renames: Pairs = ()
    ignored: tuple[str, ...] = ()
    lacks: str = ""


def refuse(what: str, key: str, fix: str) -> ConfigError:
    """Return the error about a key of a published config.json."""
    return ConfigError(what, where=f"{CONFIG}: {key}", fix=fix)


def part_of(raw: Mapping[str, Any], key: str) -> Json:
    """Return the settings of a part. Raises: ConfigError if there are none"""
    part = raw.get(key)
    if isinstance(part, dict):
        return dict(part)
    raise refuse(
        f"{raw['architectures'][0]} has its text model's settings there, and the file has none.",
        key,
        "fetch config.json of the model again.",
    )


def ratio(raw: Mapping[str, Any], key: str) -> float:
    """Return a setting that is a positive number, 1 without one. Raises: ConfigError"""
    value = raw.get(key)
    value = 1 if value is None else value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise refuse(f"{key} is {value!r}, not a positive number.", key, "fetch config.json again.")


def number(raw: Mapping[str, Any], key: str) -> int:
    """Return a setting that is a positive whole number. Raises: ConfigError"""
    value = raw.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise refuse(
        f"{key} is {value!r}, not a positive whole number.", key, "fetch config.json again."
    )
