"""Makes the rows of a table of newer flags: mapped, taken with a note, or refused.

Each flag is given with its default, or its type where it has none; both say what values it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dovetail.config.compat.deprecated_flags import (
    NEWER,
    NOTHING,
    Fields,
    Mapped,
    NewerFlag,
    by_field,
    by_key,
    is_one_of,
)
from dovetail.config.sections.field import Flag, Meta
from dovetail.errors import ConfigError

Table = dict[str, NewerFlag]
_TYPES = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "json"}
_ASKS_NOTHING: tuple[Any, ...] = (None, "", "auto", [], {})


def mapped(today: str, fields: Callable[[Any], Fields], **flags: Any) -> Table:
    """Return rows of other names for the current flag `today`; null sets nothing."""
    return _table(Mapped(today, lambda value: {} if value is None else fields(value)), flags)


def renamed(name: str, **flags: Any) -> Table:
    """Return rows of other names for the flag of this field name."""
    row = by_field(name)
    return mapped(row.flag, row.fields, **flags)


def key_of(name: str, key: str, **flags: Any) -> Table:
    """Return rows of other names for a key of a JSON flag."""
    row = by_key(name, key)
    return mapped(row.flag, row.fields, **flags)


def taken(why: str, **flags: Any) -> Table:
    """Return rows of flags that change nothing with any value; `why` follows a colon."""
    return _table(Mapped(f"{NOTHING}{why}", lambda value: {}), flags)


def refused(
    why: str,
    instead: str = "leave the flag out",
    *,
    passing: Iterable[Any] = (),
    **flags: Any,
) -> Table:
    """Return rows of flags that are refused, except with their default or a value in `passing`.

    `why` follows a colon, `instead` says what to use.
    """
    rows: Table = {}
    for name, default in flags.items():
        neutral = (*_ASKS_NOTHING, *passing, *([] if isinstance(default, type) else [default]))
        row = Mapped(f"{NOTHING}{why}", _refusal(why, instead, neutral), instead=instead)
        rows |= _table(row, {name: default})
    return rows


def with_short_names(table: Table, short: Mapping[str, str]) -> Table:
    """Return the table with the short spellings of some flags."""
    result = dict(table)
    for name, spelling in short.items():
        flag = table[name].flag
        named = replace(flag, meta=replace(flag.meta, short=spelling))
        result[name] = replace(table[name], flag=named)
    return result


def _refusal(why: str, instead: str, neutral: tuple[Any, ...]) -> Callable[[Any], Fields]:
    def check(value: Any) -> Fields:
        plain = list(value) if isinstance(value, tuple) else value
        if is_one_of(plain, neutral):
            return {}
        raise ConfigError(f"{why}.", fix=f"{instead}.")

    return check


def _table(row: Mapped, flags: Mapping[str, Any]) -> Table:
    return {
        name: NewerFlag(_flag(name, _TYPES[_type_of(default)], row), row)
        for name, default in flags.items()
    }


def _type_of(default: Any) -> type:
    return default if isinstance(default, type) else type(default)


def _flag(name: str, value_type: str, row: Mapped) -> Flag:
    meta = Meta(help=f"{row.state}: {row.today.removeprefix(NOTHING)}")
    return Flag(
        name=name, group=NEWER, value_type=value_type, is_optional=True, default=None, meta=meta
    )
