"""Convert text, YAML values and Python values to the value of a flag, or raise an error naming it.

Knows the value types of flags and their bounds. Whether a plugin of that name exists is checked
later, by the registry.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_value

_SUFFIXES: dict[str, int] = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_HUMAN = re.compile(r"([+-]?\d+(?:\.\d+)?)([kKmMgGtT])")
_PAIRS = re.compile(r"[\w-]+=[^=,{}\[\]\"]+(,[\w-]+=[^=,{}\[\]\"]+)*")
_WORD = re.compile(r"(?!(true|false)$)[A-Za-z][\w:-]*|[.~]{0,2}/.*", re.IGNORECASE)
"""Words and paths that a JSON flag with a `key` takes as plain text rather than JSON."""
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


def human_int(text: str) -> int:
    """Return 1000 for "1k", 1024 for "1K", 25600 for "25.6k". Raises: ValueError."""
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return int(text.strip().replace("_", ""))
    number, suffix = match.groups()
    scale = _SUFFIXES[suffix]
    if "." not in number:
        return int(number) * int(scale)
    if suffix.isupper():
        raise ValueError("fractions go with decimal suffixes (k, m, g, t) only")
    whole, fraction = number.split(".")
    result, left = divmod(int(whole + fraction) * scale, int("1" + "0" * len(fraction)))
    if left:
        raise ValueError("not a whole number")
    return result


def from_value(flag: Flag, value: Any) -> Any:
    """Return text, a YAML value or a Python value as the flag's own type, bounds checked.

    Raises: ConfigError naming the flag, what it takes and what it got.
    """
    if isinstance(value, str) and value in flag.meta.words:
        return flag.meta.words[value]
    if value is True and flag.meta.bare is not None:
        return flag.meta.bare
    if value is None or _is_null(flag, value):
        return _null_value(flag, value)
    converted = _CONVERTERS[flag.value_type](flag, value)
    _check_bounds(flag, converted)
    return converted


def _is_null(flag: Flag, value: Any) -> bool:
    """Return whether a word means null. For free text and plugins, "none" may be a real value."""
    if not isinstance(value, str):
        return False
    if flag.value_type == "list":
        return flag.meta.kind is not None and value in ("None", "null")
    if flag.value_type == "str":
        return flag.is_optional and flag.meta.kind is not None and value in ("None", "null")
    return value.lower() in ("none", "null")


def _null_value(flag: Flag, value: Any) -> Any:
    """Return the value for null: None, or an empty list or object if that is the default. Raises:
    ConfigError."""
    if flag.is_optional:
        return None
    if flag.default in ((), {}):
        return () if flag.value_type == "list" else {}
    raise _wrong(flag, value)


def split_items(text: str) -> list[str]:
    """Return the items of a list flag's text: a word, a comma list, JSON of a list or of one item.

    Items that are not text stay JSON.
    """
    if text.lstrip().startswith(("[", "{")):
        found = json_value(text)
        items = found if isinstance(found, list) else [found]
        return [item if isinstance(item, str) else json.dumps(item) for item in items]
    return [part.strip() for part in text.split(",") if part.strip()]


def _bool(flag: Flag, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in _TRUE | _FALSE and not isinstance(value, float):
        return word in _TRUE
    raise _wrong(flag, value)


def _int(flag: Flag, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        raise _wrong(flag, value)
    if isinstance(value, float):
        if not value.is_integer():
            raise _wrong(flag, value)
        return int(value)
    try:
        return human_int(str(value))
    except ValueError as error:
        raise _wrong(flag, value) from error


def _float(flag: Flag, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        raise _wrong(flag, value)
    try:
        number = float(value)
    except ValueError as error:
        raise _wrong(flag, value) from error
    if not math.isfinite(number):
        raise _wrong(flag, value)
    return number


def _str(flag: Flag, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(flag, value)
    return str(value)


def _list(flag: Flag, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(_split(flag, value))
    if isinstance(value, list | tuple):
        return tuple(_item(flag, item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (str(value),)
    raise _wrong(flag, value)


def _item(flag: Flag, value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else _str(flag, value)


def _split(flag: Flag, text: str) -> list[str]:
    try:
        return split_items(text)
    except InvalidJson as error:
        raise _wrong(flag, text) from error


def _dict(flag: Flag, value: Any) -> dict[str, Any]:
    if isinstance(value, str) and not (flag.meta.key and _WORD.fullmatch(value)):
        value = _json(flag, value)
    if flag.meta.key and isinstance(value, int | str) and not isinstance(value, bool):
        value = {flag.meta.key: value}
    if not isinstance(value, dict):
        raise _wrong(flag, value)
    return {str(key): item for key, item in value.items()}


def _json(flag: Flag, text: str) -> Any:
    """Return a JSON value, or the object for pairs such as "image=16,video=2"."""
    if _PAIRS.fullmatch(text):
        return {key: scalar(item) for key, item in (p.split("=", 1) for p in text.split(","))}
    try:
        return json_value(text)
    except InvalidJson as error:
        raise ConfigError(
            f"{_shown(flag, text)} {error}",
            where=flag.spelling,
            fix=f"quote the whole value, `{flag.spelling} '{{\"key\": 1}}'`, "
            f"or set one key: `{flag.spelling}.key 1`.",
        ) from error


_CONVERTERS: dict[str, Callable[[Flag, Any], Any]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _str,
    "list": _list,
    "json": _dict,
}

_WANTED = {
    "bool": "true or false",
    "int": "a whole number (4096, 4k, 4K)",
    "float": "a number",
    "str": "text",
    "list": "a list of words",
    "json": "a JSON object",
}


def wanted(flag: Flag) -> str:
    """Return a description of the values that the flag takes."""
    words = [_WANTED[flag.value_type], *flag.meta.words]
    return " or ".join(words)


def _shown(flag: Flag, value: Any) -> str:
    return "***" if flag.meta.secret else repr(value)


def _wrong(flag: Flag, value: Any) -> ConfigError:
    shown = "null" if value is None else _shown(flag, value)
    return ConfigError(
        f"{shown} is not {wanted(flag)}.",
        where=flag.spelling,
        fix=f"see `dovetail serve --help={flag.name.replace('_', '-')}`.",
    )


def bounds_text(flag: Flag) -> str:
    """Return "from 0 to 1", "at least 1", "at most 9" or ""."""
    low, high = (None if bound is None else f"{bound}" for bound in (flag.meta.ge, flag.meta.le))
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None:
        return f"at least {low}"
    return f"at most {high}" if high is not None else ""


def _check_bounds(flag: Flag, value: Any) -> None:
    low, high = flag.meta.ge, flag.meta.le
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        raise ConfigError(
            f"{value} is out of range.",
            where=flag.spelling,
            fix=f"give {' or '.join((bounds_text(flag), *flag.meta.words))}.",
        )


def scalar(text: str) -> Any:
    """Return a command-line value as JSON if it is valid JSON, else as text."""
    try:
        return json_value(text)
    except InvalidJson:
        return text


def set_path(into: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key; a trailing + appends to a list (text is split at commas).

    Mutates: into. Raises: ValueError if a key on the path contains no object.
    """
    *parents, last = path.split(".")
    for key in parents:
        child = into.setdefault(key, {})
        if not isinstance(child, dict):
            raise ValueError(f"{key} already holds {child!r}")
        into = child
    if not last.endswith("+"):
        into[last] = value
        return
    items = into.setdefault(last[:-1], [])
    if not isinstance(items, list):
        raise ValueError(f"{last[:-1]} already holds {items!r}")
    items += map(scalar, value.split(",")) if isinstance(value, str) else [value]


def merge_deep(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge `more` into `into`, objects key by key. Mutates: into."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge_deep(into[key], value)
        else:
            into[key] = value
