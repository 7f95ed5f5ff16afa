"""Environment variables: DOVETAIL_<FLAG> for every flag, and the VLLM_* names people have set.

`read(environ)` gives the fields they set, by variable. Like flags, a name is honoured, mapped to
today's with a note, or refused; a name that is not known is told with the nearest. Reads no other
variable; those that other modules read stand in `OWN` so that they count as known.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.engine import flags
from dovetail.config.field import Flag
from dovetail.config.older import older_flags
from dovetail.errors import ConfigError

PREFIX = "DOVETAIL_"
_FOREIGN = "VLLM_"

OWN = {
    "DOVETAIL_PLUGINS": "packages whose plugins may be used, by comma; empty: built-in ones alone",
    "DOVETAIL_CPU_ISA": "highest instruction set of the native kernels: base, avx2, avx512, "
    "avx512bf16, neon, or none to run on torch",
    "DOVETAIL_VERBOSE": "1 shows tracebacks of errors, as --verbose does",
}
"""Variables that are no flag, and what they mean."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable of another name that sets a field. `fields` takes its text."""

    today: str
    fields: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A variable that asks for what always happens here, or for nothing of ours."""

    always: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A variable whose effect is not built; `passing` are the texts that ask for nothing."""

    missing: str
    passing: tuple[str, ...] = ("", "0", "false")


Row = Setting | NoEffect | Refused


@dataclass(frozen=True, slots=True)
class Variables:
    """What the environment sets: field values by variable, and what to tell the user."""

    fields: dict[str, dict[str, Any]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def variable_of(flag: Flag) -> str:
    """Return the variable that sets a flag."""
    return PREFIX + flag.name.upper()


def _field(name: str) -> Setting:
    return Setting("--" + name.replace("_", "-"), lambda text: {name: text})


def _gib(text: str) -> dict[str, Any]:
    return {"kv_cache_memory_bytes": int(float(text) * 2**30)}


FOREIGN: dict[str, Row] = {
    "VLLM_API_KEY": _field("api_key"),
    "VLLM_ATTENTION_BACKEND": _field("attention_backend"),
    "VLLM_CPU_KVCACHE_SPACE": Setting("--kv-cache-memory-bytes", _gib),
    "VLLM_NO_USAGE_STATS": NoEffect("dovetail reports nothing to anybody"),
    "VLLM_NCCL_SO_PATH": Refused("there is no worker that uses NCCL yet"),
}
"""Other names than a flag's own: VLLM_* and what the reference lists without a prefix."""


def read(environ: Mapping[str, str]) -> Variables:
    """Return what the variables set. An empty variable sets nothing.

    Raises: ConfigError for a refused variable, and for a flag given under two names with
    different values.
    """
    own = {variable_of(flag): flag for flag in (*flags().values(), *older_flags().values())}
    fields: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for name, text in sorted(environ.items()):
        if name in own and text:
            fields[name] = {own[name].name: text}
        elif name in FOREIGN:
            _take(name, text, fields, notes)
        elif name not in own and name not in OWN and name.startswith((PREFIX, _FOREIGN)):
            warnings.append(_unknown(name, [*own, *OWN, *FOREIGN]))
    return Variables(fields, tuple(notes), tuple(warnings))


def _take(name: str, text: str, fields: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Add what a variable of another name does. Mutates: fields, notes. Raises: ConfigError."""
    row = FOREIGN[name]
    match row:
        case Setting() if text:
            try:
                fields[name] = row.fields(text)
            except ValueError as error:
                raise ConfigError(f"{text!r} is not understood: {error}.", where=name) from error
            notes.append(f"{name} is {today(row)}.")
        case Refused() if text.lower() not in row.passing:
            raise ConfigError(f"{row.missing}.", where=name, fix=f"unset {name}.")


def today(row: Setting) -> str:
    """Return a mapped variable's flag with dovetail's own variable for it."""
    if row.today.startswith("--") and " " not in row.today:
        return f"{row.today}, or {PREFIX}{row.today[2:].upper().replace('-', '_')}"
    return row.today


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{name} is no variable of dovetail's" + (f"; did you mean {near[0]}?" if near else ".")
