"""Environment variables of other servers, and the meaning of each here.

A name is a `Setting` (it sets a flag), has `NoEffect` (it requests what always happens, or concerns
nothing here), is an `UnsupportedVariable`, or is `ReadBy` another program. The tables are values of
the kind `foreign_variables`, whose names are the servers'. `environment.read` applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dovetail import registry
from dovetail.unsupported import remedy, sentence

KIND = "foreign_variables"


@dataclass(frozen=True, slots=True)
class Setting:
    """A foreign variable that sets a field. `fields` turns its text into fields."""

    today: str
    fields: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A variable that requests what always happens here, or that concerns nothing here."""

    always: str


@dataclass(frozen=True, slots=True)
class ReadBy:
    """A variable that another program reads. `who` names that program and the meaning here."""

    who: str


@dataclass(frozen=True, slots=True)
class UnsupportedVariable:
    """A variable that requests a missing `feature`; `passing` texts do not request it."""

    feature: str
    passing: tuple[str, ...] = ("", "0", "false")

    @property
    def missing(self) -> str:
        """Return a sentence about the missing feature."""
        return sentence(self.feature)

    def fix(self, name: str) -> str:
        """Return what to do instead."""
        return remedy(self.feature, f"unset {name}")


Row = Setting | NoEffect | ReadBy | UnsupportedVariable


@cache
def foreign_prefixes() -> tuple[str, ...]:
    """Return what the variables of each server begin with."""
    return tuple(_prefix(name) for name in registry.names(KIND))


@cache
def foreign_variables() -> dict[str, Row]:
    """Return the variables of all servers."""
    return {name: row for server in registry.names(KIND) for name, row in _table(server).items()}


def variables_of_servers_in(environ: Iterable[str]) -> dict[str, Row]:
    """Return the variables of the servers whose prefix a name in `environ` has.

    The tables of the other servers are not imported.
    """
    servers = [s for s in registry.names(KIND) if any(n.startswith(_prefix(s)) for n in environ)]
    return {name: row for server in servers for name, row in _table(server).items()}


def _prefix(server: str) -> str:
    return f"{server.upper()}_"


def _table(server: str) -> Mapping[str, Row]:
    table: Mapping[str, Row] = registry.admin.value_of(KIND, server)
    return table
