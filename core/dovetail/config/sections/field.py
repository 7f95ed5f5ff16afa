"""One flag as data: a dataclass field with help, unit, bounds and plugin kind.

`flag(...)` writes a field, `flags_of(cls)` reads them back. Knows neither argparse nor the
registry: the command line, YAML, the docs and validation are all derived from `Flag`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

MISSING = dataclasses.MISSING
_KEY = "dovetail.flag"

VALUE_TYPES = ("bool", "int", "float", "str", "list", "json")
"""Every flag value has one of these types, optional or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The metadata of a field, in addition to its type and default.

    `kind` is the plugin kind whose entries are the choices. `words` maps a spelling such as "auto"
    to the value that it means. `default_note` replaces the default in help texts. `key` is the
    entry of a JSON flag that a bare value sets. `bare` is the value of a flag given without one
    (None: a value is required).
    """

    help: str
    unit: str | None = None
    ge: float | None = None
    le: float | None = None
    kind: str | None = None
    aliases: tuple[str, ...] = ()
    short: str | None = None
    secret: bool = False
    metavar: str | None = None
    words: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    default_note: str | None = None
    key: str | None = None
    bare: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One setting: its field, its type and its Meta."""

    name: str
    group: str
    value_type: str
    is_optional: bool
    default: Any
    meta: Meta

    @property
    def spelling(self) -> str:
        """Return the flag as written on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Return every accepted spelling, short ones first."""
        short = (self.meta.short,) if self.meta.short else ()
        return (*short, self.spelling, *self.meta.aliases)


def flag(
    default: Any,
    *,
    help: str,
    unit: str | None = None,
    ge: float | None = None,
    le: float | None = None,
    kind: str | None = None,
    aliases: tuple[str, ...] = (),
    short: str | None = None,
    secret: bool = False,
    metavar: str | None = None,
    words: Mapping[str, Any] | None = None,
    default_note: str | None = None,
    key: str | None = None,
    bare: str | None = None,
) -> Any:
    """Return a dataclass field that is also a flag. A dict default is copied per instance."""
    meta = Meta(
        help=help,
        unit=unit,
        ge=ge,
        le=le,
        kind=kind,
        aliases=aliases,
        short=short,
        secret=secret,
        metavar=metavar,
        words=dict(words or {}),
        default_note=default_note,
        key=key,
        bare=bare,
    )
    metadata = {_KEY: meta}
    if isinstance(default, dict):
        return dataclasses.field(
            default_factory=lambda: dict(default), metadata=metadata, repr=not secret
        )
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def flags_of(cls: type[Any]) -> tuple[Flag, ...]:
    """Return the flags of a config dataclass in field order."""
    return _flags_of(typing.cast(Any, cls))


@cache
def _flags_of(cls: Any) -> tuple[Flag, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(
        _flag_of(cls, field, hints[field.name])
        for field in dataclasses.fields(cls)
        if _KEY in field.metadata
    )


def group_title(cls: type[Any]) -> str:
    """Return the first line of the group's docstring without its full stop."""
    paragraph = (cls.__doc__ or cls.__name__).strip().partition("\n\n")[0]
    return " ".join(paragraph.split()).rstrip(".")


def _flag_of(cls: type[Any], field: dataclasses.Field[Any], hint: Any) -> Flag:
    value_type, is_optional = _value_type(hint)
    default = field.default
    if default is MISSING and field.default_factory is not MISSING:
        default = field.default_factory()
    return Flag(
        name=field.name,
        group=cls.__name__,
        value_type=value_type,
        is_optional=is_optional,
        default=default,
        meta=field.metadata[_KEY],
    )


def _value_type(hint: Any) -> tuple[str, bool]:
    """Return (value type, is_optional) of a field's type. Raises: TypeError for other types."""
    arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [arm for arm in arms if arm is not type(None)]
    if len(kinds) != 1:
        raise TypeError(f"a flag has one type, not {hint}")
    return _plain_type(kinds[0]), len(kinds) < len(arms)


def _plain_type(hint: Any) -> str:
    if hint in (bool, int, float, str):
        return str(hint.__name__)
    origin = typing.get_origin(hint)
    if origin is tuple and typing.get_args(hint) == (str, ...):
        return "list"
    if origin is Mapping:
        return "json"
    raise TypeError(f"no flag can have the type {hint}")
