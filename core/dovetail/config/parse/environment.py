"""Environment variables: DOVETAIL_<FLAG> for every flag, and the names of other servers.

`read(environ)` returns the fields that they set, by variable. Like a flag, a name is supported,
translated to the current one with a note, without effect, or unsupported
(`foreign_variables`). An unknown name gives a warning with the nearest known one. Reads no
other variable; `OWN` lists those that other modules read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.compat.deprecated_flags import deprecated_flags, newer_flags
from dovetail.config.config import Config, flags, shown
from dovetail.config.parse.foreign_variables import (
    NoEffect,
    Row,
    Setting,
    UnsupportedVariable,
    foreign_prefixes,
    variables_of_servers_in,
)
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError

PREFIX = "DOVETAIL_"

CONFIG = "DOVETAIL_CONFIG"
OWN = {
    CONFIG: "YAML file of settings; those of --config are laid over it",
    "DOVETAIL_PLUGINS": "packages whose plugins may be used, by comma; empty: built-in ones alone",
    "DOVETAIL_CPU_ISA": "highest instruction set of the native kernels: base, avx2, avxvnni, "
    "avx512, avx512bf16, amx, neon, or none to run on torch",
    "DOVETAIL_WHEEL_SETS": "machine: a wheel has the instruction sets of this machine alone",
    "DOVETAIL_VERBOSE": "1 shows tracebacks of errors and why plugins were not chosen, "
    "as --verbose does",
}
"""Variables that are not flags -> their meaning."""

_SERVICE = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)$"
)
_SERVICE_URL = re.compile(r"(tcp|udp)://\S+")


@dataclass(frozen=True, slots=True)
class Variables:
    """The settings of the environment: field values by variable, with notes and warnings for the
    user."""

    fields: dict[str, dict[str, Any]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def variable_of(flag: Flag) -> str:
    """Return the variable that sets a flag."""
    return PREFIX + flag.name.upper()


def _other_names(flag: Flag) -> list[str]:
    """Return the variables for a flag's other spellings."""
    return [PREFIX + a[2:].replace("-", "_").upper() for a in flag.meta.aliases if a[:2] == "--"]


def read(environ: Mapping[str, str]) -> Variables:
    """Return the settings of the variables. An empty variable sets nothing.

    Raises: ConfigError for an unsupported variable, or if two names give a flag different values.
    """
    every_flag = (*flags().values(), *deprecated_flags().values())
    own = {name: flag for flag in every_flag for name in (variable_of(flag), *_other_names(flag))}
    foreign = variables_of_servers_in(environ)
    fields: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for name, text in sorted(environ.items()):
        if not text or is_service_link(name, text):
            continue
        if name in own:
            fields[name] = {own[name].name: text}
        elif name in foreign:
            _take(name, text, foreign[name], fields, notes)
        elif name not in OWN and name.startswith(PREFIX) and (newer := _newer().get(name)):
            fields[name] = {newer: text}
        elif name not in OWN and name.startswith((PREFIX, *foreign_prefixes())):
            warnings.append(_unknown(name, [*own, *OWN, *foreign]))
    if len(fields) > 1:
        _check_agreed(fields)
    return Variables(fields, tuple(notes), tuple(warnings))


def _newer() -> dict[str, str]:
    return {variable_of(one.flag): name for name, one in newer_flags().items()}


def is_service_link(name: str, text: str) -> bool:
    """Return whether Kubernetes set this variable for a service with our name.

    A service "vllm" gives every pod VLLM_PORT=tcp://10.0.0.1:8000, VLLM_SERVICE_HOST and others.
    """
    if not name.startswith((PREFIX, *foreign_prefixes())):
        return False
    is_url = name.endswith("_PORT") and _SERVICE_URL.fullmatch(text) is not None
    return is_url or _SERVICE.search(name) is not None


def _take(
    name: str, text: str, row: Row, fields: dict[str, dict[str, Any]], notes: list[str]
) -> None:
    """Apply a foreign variable. Mutates: fields, notes. Raises: ConfigError."""
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
    """Raise ConfigError if two variables give one field different values."""
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
    """Return a foreign variable's flag, with dovetail's own variable for it."""
    name = row.today.removeprefix("--").replace("-", "_")
    if name in flags():
        return f"{row.today}, or {variable_of(flags()[name])}"
    return row.today


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return a warning with the nearest known name. Names are compared without their prefixes."""
    alike = sorted(known, key=lambda other: other[0] == name[0])  # of one stem the last wins
    by_stem = {_stem(other): other for other in alike}
    near = difflib.get_close_matches(_stem(name), by_stem, n=1, cutoff=0.6)
    hint = f"; did you mean {by_stem[near[0]]}?" if near else "."
    return f"{name} is not a variable of dovetail{hint}"


def _stem(name: str) -> str:
    prefixes = (PREFIX, *foreign_prefixes())
    return next((name[len(one) :] for one in prefixes if name.startswith(one)), name)
