"""Layouts of checkpoint settings, each read as the equivalent config.json.

A layout is a value of the kind `config_format`: "module:function". The function takes the
checkpoint's path and, if it has that parameter, the value of --mmproj. It returns the content of
config.json, or None if the path has another layout. A layout is imported only when it is tried.
"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from dovetail import registry
from dovetail.errors import ConfigError

FLAG = "--config-format"
KIND = "config_format"
FIRST = "hf"
"""Tried before the others, and named by the error about a missing file."""


def read_settings(
    path: str | Path, name: str = "auto", mmproj: str | None = None
) -> dict[str, Any]:
    """Return the content of config.json, or its equivalent. `name` is a layout; "auto" tries all.

    Raises: ConfigError if the path does not have this layout, or any.
    """
    target = registry.admin.value_of(KIND, name, where=FLAG)
    targets = _all_targets() if target is None else [target]
    found = (_read(Path(path), one, mmproj) for one in targets)
    settings = next((one for one in found if one is not None), None)
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


def _all_targets() -> list[str]:
    """Return the functions of all layouts, the usual one first."""
    names = sorted(registry.names(KIND), key=lambda name: (name != FIRST, name))
    targets = (registry.admin.value_of(KIND, name) for name in names)
    return [target for target in targets if target is not None]


def _read(path: Path, target: str, mmproj: str | None) -> dict[str, Any] | None:
    read = resolve_name(target)
    takes_it = "mmproj" in signature(read).parameters
    found: dict[str, Any] | None = read(path, mmproj=mmproj) if takes_it else read(path)
    if found is not None and mmproj and not takes_it:
        raise ConfigError("only GGUF models have one.", where="--mmproj", fix="leave the flag out.")
    return found
