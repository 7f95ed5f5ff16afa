"""Plugin options: words, JSON and YAML values become a plugin's frozen Options dataclass.

Fields may be bool, int, float, str, a Literal, an enum, tuples, dicts, frozen dataclasses, and any
of them or None. A field's metadata may carry "help", "unit", "choices", "ge" and "le".
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Plugin
from dovetail.json_values import InvalidJson, json_value
from dovetail.registry.kinds import Kind, kind_of


def options_for(cls: type[Any], mapping: Mapping[str, Any], *, where: str | None = None) -> Any:
    """Return cls.Options built from names and values; text is converted to the field's type.

    Raises: ConfigError naming the option, the values it takes and the one it got.
    """
    place = where or _place(cls)
    types = option_types(cls)
    values = {name.replace("-", "_"): value for name, value in mapping.items()}
    for name in values:
        if name not in types:
            raise _unknown(place, name, list(types))
    converted = {
        name: convert(value, types[name], f"{place}.{name}") for name, value in values.items()
    }
    _check_bounds(cls.Options, converted, place)
    try:
        return cls.Options(**converted)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the plugin refused its options: {error}.", where=place) from error


def option_types(cls: type[Plugin]) -> dict[str, Any]:
    """Return the type of every option in field order."""
    hints = typing.get_type_hints(cls.Options)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls.Options)}


def convert(value: Any, wanted: Any, where: str) -> Any:
    """Return `value` converted to type `wanted`. Raises: ConfigError naming `where`."""
    if value == "null" and type(None) in typing.get_args(wanted):
        return None  # even if any text is valid
    candidates = [value]
    if isinstance(value, str) and value[:1] in ("[", "{"):
        candidates.append(_json_or_text(value))
    reason = ""
    for candidate in candidates:
        try:
            return msgspec.convert(candidate, type=wanted, strict=not isinstance(candidate, str))
        except msgspec.ValidationError as error:
            reason = reason or str(error)
    raise ConfigError(
        f"{value!r} is not a valid value: {reason}.",
        where=where,
        fix=f"give {wanted_text(wanted)}.",
    )


def wanted_text(wanted: Any) -> str:
    """Return a description of a type: "int", "float or None", "one of a, b"."""
    if typing.get_origin(wanted) is typing.Literal:
        return "one of " + ", ".join(str(word) for word in typing.get_args(wanted))
    if wanted is type(None):
        return "None"
    if isinstance(wanted, type) and not typing.get_args(wanted):
        return wanted.__name__
    arms = typing.get_args(wanted)
    if type(None) in arms:
        return " or ".join(wanted_text(arm) for arm in arms)
    return str(wanted)


def given_options(
    cls: type[Any], mapping: Mapping[str, Any], *, where: str | None = None
) -> dict[str, Any]:
    """Return the given options, checked, as plain data: the form in a Selection."""
    built = options_for(cls, mapping, where=where)
    names = [name.replace("-", "_") for name in mapping]
    return _plain({name: getattr(built, name) for name in names})


def as_text(options: Any) -> dict[str, str]:
    """Return every option as text that `options_for` can read."""
    plain = _plain({f.name: getattr(options, f.name) for f in dataclasses.fields(options)})
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in plain.items()
    }


def describe_options(cls: type[Plugin]) -> list[dict[str, Any]]:
    """Return name, type, default, unit and help of every option."""
    types = option_types(cls)
    standard = cls.Options()
    defaults = _plain({name: getattr(standard, name) for name in types})
    return [
        {
            "name": field.name,
            "type": _values_text(field, types[field.name]),
            "default": defaults[field.name],
            "unit": field.metadata.get("unit", ""),
            "help": field.metadata.get("help", ""),
        }
        for field in dataclasses.fields(cls.Options)
    ]


def _values_text(field: dataclasses.Field[Any], wanted: Any) -> str:
    """Return a description of the values that a field takes."""
    choices = field.metadata.get("choices")
    return wanted_text(wanted) if choices is None else f"one of {_listed(choices)}"


def _listed(choices: Iterable[object]) -> str:
    return ", ".join(map(str, choices))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as another process receives them: only lists, dicts, text and numbers."""
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(values))
    return plain


def options_place(kind: Kind, name: str) -> str:
    """Return the flag that sets a plugin's options, up to the option's own name."""
    return f"--plugin-options.{kind.name}" + (f".{name}" if kind.has_named_options else "")


def _place(cls: type[Any]) -> str:
    kind = kind_of(cls)
    return f"--plugin-options.{kind.name}" if kind else f"options of {cls.__name__}"


def _unknown(place: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        fix = f"did you mean {near[0]}?"
    else:
        fix = f"it has {', '.join(known)}." if known else "this plugin has no options."
    return ConfigError("there is no such option.", where=f"{place}.{name}", fix=fix)


def _json_or_text(text: str) -> Any:
    try:
        return json_value(text)
    except InvalidJson:
        return text


def _check_bounds(options: type[Any], values: Mapping[str, Any], place: str) -> None:
    for field in dataclasses.fields(options):
        value = values.get(field.name)
        choices = field.metadata.get("choices")
        if choices is not None and field.name in values and value not in choices:
            raise ConfigError(
                f"{value!r} is not a valid choice.",
                where=f"{place}.{field.name}",
                fix=f"use one of {_listed(choices)}.",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        low, high = field.metadata.get("ge"), field.metadata.get("le")
        if low is not None and value < low:
            raise ConfigError(f"{value} is below {low}.", where=f"{place}.{field.name}")
        if high is not None and value > high:
            raise ConfigError(f"{value} is above {high}.", where=f"{place}.{field.name}")
