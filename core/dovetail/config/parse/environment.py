"""Environment variables: DOVETAIL_<FLAG> for every flag, and the VLLM_* names people have set.

`read(environ)` gives the fields they set, by variable. Like flags, a name is supported, mapped to
today's with a note, without effect, or unsupported (`vllm_variables.FOREIGN`); a name that is not
known is told with the nearest. Reads no other variable; those that other modules read stand in
`OWN`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.compat.deprecated_flags import deprecated_flags
from dovetail.config.compat.vllm_variables import (
    FOREIGN,
    FOREIGN_PREFIX,
    NoEffect,
    Setting,
    UnsupportedVariable,
)
from dovetail.config.config import Config, flags, shown
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError

PREFIX = "DOVETAIL_"

CONFIG = "DOVETAIL_CONFIG"
OWN = {
    CONFIG: "YAML file of settings; those of --config are laid over it",
    "DOVETAIL_PLUGINS": "packages whose plugins may be used, by comma; empty: built-in ones alone",
    "DOVETAIL_CPU_ISA": "highest instruction set of the native kernels: base, avx2, avx512, "
    "avx512bf16, amx, neon, or none to run on torch",
    "DOVETAIL_VERBOSE": "1 shows tracebacks of errors and why plugins were not chosen, "
    "as --verbose does",
}
"""Variables that are not flags, and what they mean."""

_SERVICE = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)$"
)
_SERVICE_URL = re.compile(r"(tcp|udp)://\S+")


@dataclass(frozen=True, slots=True)
class Variables:
    """The settings of the environment: field values by variable, and what to tell the user."""

    fields: dict[str, dict[str, Any]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def variable_of(flag: Flag) -> str:
    """Return the variable that sets a flag."""
    return PREFIX + flag.name.upper()


def _other_names(flag: Flag) -> list[str]:
    """Return the variables of a flag's other spellings."""
    return [PREFIX + a.removeprefix("--").replace("-", "_").upper() for a in flag.meta.aliases]


def read(environ: Mapping[str, str]) -> Variables:
    """Return the settings of the variables. An empty variable sets nothing.

    Raises: ConfigError for a refused variable, and for a flag given under two names with
    different values.
    """
    every_flag = (*flags().values(), *deprecated_flags().values())
    own = {name: flag for flag in every_flag for name in (variable_of(flag), *_other_names(flag))}
    fields: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for name, text in sorted(environ.items()):
        if not text or is_service_link(name, text):
            continue
        if name in own:
            fields[name] = {own[name].name: text}
        elif name in FOREIGN:
            _take(name, text, fields, notes)
        elif name not in OWN and name.startswith((PREFIX, FOREIGN_PREFIX)):
            warnings.append(_unknown(name, [*own, *OWN, *FOREIGN]))
    if len(fields) > 1:
        _check_agreed(fields)
    return Variables(fields, tuple(notes), tuple(warnings))


def is_service_link(name: str, text: str) -> bool:
    """Return whether Kubernetes made this variable for a service that is called like us.

    A service "vllm" gives every pod VLLM_PORT=tcp://10.0.0.1:8000, VLLM_SERVICE_HOST and others.
    """
    if not name.startswith((PREFIX, FOREIGN_PREFIX)):
        return False
    is_url = name.endswith("_PORT") and _SERVICE_URL.fullmatch(text) is not None
    return is_url or _SERVICE.search(name) is not None


def _take(name: str, text: str, fields: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Add what a variable of another name does. Mutates: fields, notes. Raises: ConfigError."""
    row = FOREIGN[name]
    match row:
        case Setting():
            try:
                fields[name] = row.fields(text)
            except ValueError as error:
                raise ConfigError(f"{text!r} is not a valid value: {error}.", where=name) from error
            notes.append(f"{name} is {today(row)}.")
        case NoEffect():
            notes.append(f"{name} changes nothing: {row.always}.")
        case UnsupportedVariable() if text.lower() not in row.passing:
            raise ConfigError(row.missing, where=name, fix=row.fix(name))


def _check_agreed(fields: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError where two variables give one field different values."""
    taken: dict[str, tuple[str, Any]] = {}
    for name, given in fields.items():
        config = Config.from_fields(given, origin=name)
        for field in config.origins:
            value = config.value(field)
            other, earlier = taken.setdefault(field, (name, value))
            if value != earlier and not isinstance(value, Mapping):
                flag = flags()[field]
                raise ConfigError(
                    f"asks for {shown(flag, value)!r}, but {other} for {shown(flag, earlier)!r}.",
                    where=name,
                    fix=f"unset one of them; {flag.spelling} has one value.",
                )


def today(row: Setting) -> str:
    """Return a mapped variable's flag with dovetail's own variable for it."""
    name = row.today.removeprefix("--").replace("-", "_")
    if name in flags():
        return f"{row.today}, or {variable_of(flags()[name])}"
    return row.today


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return a warning with the nearest name; prefixes, which are alike, do not count."""
    alike = sorted(known, key=lambda other: other[0] == name[0])  # of one stem the last counts
    by_stem = {_stem(other): other for other in alike}
    near = difflib.get_close_matches(_stem(name), by_stem, n=1, cutoff=0.6)
    hint = f"; did you mean {by_stem[near[0]]}?" if near else "."
    return f"{name} is not a variable of dovetail{hint}"


def _stem(name: str) -> str:
    return name.removeprefix(PREFIX).removeprefix(FOREIGN_PREFIX)
