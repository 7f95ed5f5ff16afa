"""YAML files of settings: keys are named like the flags, values have YAML types."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from dovetail.config.compat.deprecated_flags import translated_flags
from dovetail.config.config import flags, nearest_fix
from dovetail.config.sections.convert import set_path
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError


def read_fields(path: str) -> dict[str, Any]:
    """Return field name -> value of a YAML file; "a.b: 1" sets one key of a JSON flag.

    Raises: ConfigError naming the file, and the line or key at fault.
    """
    return fields_of(path, read_mapping(path))


def fields_of(path: str, content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return field name -> value for keys that were read from a file. Raises: as read_fields"""
    fields: dict[str, Any] = {}
    for key, value in content.items():
        flag, inner = _find(path, str(key))
        if not inner:
            fields[flag.name] = value
            continue
        try:
            set_path(fields.setdefault(flag.name, {}), inner, value)
        except ValueError as error:
            raise ConfigError(f"cannot set {key}: {error}.", where=path) from error
    return fields


def read_mapping(path: str, where: str = "--config") -> dict[Any, Any]:
    """Return the content of a YAML file that the flag `where` names. Raises: as read_fields"""
    import yaml  # only --config needs it, and it slows the start

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}.", where=where, fix="give a YAML file."
        ) from error
    try:
        _refuse_duplicates(yaml.compose(text, Loader=yaml.SafeLoader), path)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"not YAML: {' '.join(str(error).split())}.", where=path, fix="correct that line."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError("must hold `flag: value` lines.", where=path, fix="e.g. `port: 8000`.")
    return content


def _refuse_duplicates(node: Any, path: str) -> None:
    keys = [key.value for key, _ in node.value] if node is not None and node.id == "mapping" else []
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(
            f"{', '.join(twice)} is given more than once.", where=path, fix="keep one of them."
        )


def _find(path: str, key: str) -> tuple[Flag, str]:
    head, _, inner = key.partition(".")
    name = head.lstrip("-").replace("_", "-")
    for flag in chain(flags().values(), translated_flags()):
        if any(name == spelling.lstrip("-") for spelling in flag.spellings):
            if inner and flag.value_type != "json":
                raise ConfigError(f"{head} has no keys.", where=path, fix=f"write `{head}: VALUE`.")
            return flag, inner
    known = [flag.spelling[2:] for flag in flags().values()]
    raise ConfigError(f'there is no setting "{key}".', where=path, fix=nearest_fix(name, known))
