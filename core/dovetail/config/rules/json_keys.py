"""Read the keys of a JSON flag into a dataclass."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.registry.options import convert


def read_keys(cls: type[Any], raw: Mapping[str, Any], flag: str) -> Any:
    """Return the keys of a flag; null means a key's default. Raises: ConfigError"""
    given = {name.replace("-", "_"): value for name, value in raw.items() if value is not None}
    types = typing.get_type_hints(cls)
    for name in given:
        if name not in types:
            raise ConfigError(
                "there is no such key.",
                where=f"{flag}.{name}",
                fix=f"use {', '.join(types)}.",
            )
    return cls(
        **{name: convert(value, types[name], f"{flag}.{name}") for name, value in given.items()}
    )
