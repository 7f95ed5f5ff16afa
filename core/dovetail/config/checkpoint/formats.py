"""Layouts of checkpoint settings, each read as the equivalent config.json.

A layout is a value of the kind `config_format`: "module:function". The function takes the
checkpoint's path and returns the content of config.json, or None if the path has another layout. A
layout is imported only when it is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from dovetail import registry
from dovetail.errors import ConfigError

FLAG = "--config-format"
KIND = "config_format"
FIRST = "hf"
"""Tried before the others, and named by the error about a missing file."""

Read = Callable[[Path], dict[str, Any] | None]


def read_settings(path: str | Path, name: str = "auto") -> dict[str, Any]:
    """Return the content of config.json, or its equivalent. `name` is a layout; "auto" tries all.

    Raises: ConfigError if the path does not have this layout, or any.
    """
    target = registry.admin.value_of(KIND, name, where=FLAG)
    settings = _read(Path(path), target) if target is not None else _first_that_fits(Path(path))
    if settings is None:
        layout = "any known layout" if target is None else f'the layout "{name}"'
        raise ConfigError(
            f"the folder has no config.json, nor settings in {layout}."
            if target is None
            else f"the folder has no settings in {layout}.",
            where=str(path),
            fix="give a folder in Hugging Face layout (config.json, tokenizer.json, weights) or a "
            "GGUF file.",
        )
    return settings


def _first_that_fits(path: Path) -> dict[str, Any] | None:
    names = sorted(registry.names(KIND), key=lambda name: (name != FIRST, name))
    for name in names:
        target = registry.admin.value_of(KIND, name)
        found = None if target is None else _read(path, target)
        if found is not None:
            return found
    return None


def _read(path: Path, target: str) -> dict[str, Any] | None:
    return cast("Read", resolve_name(target))(path)
