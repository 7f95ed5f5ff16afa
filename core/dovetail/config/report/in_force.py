"""InForce: the settings and plugins of a running server, and the origin of each, as data.

Created once, by the process that resolved the configuration, and sent to every API process. Secrets
are masked on creation, so no process that answers requests can leak them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.report.secrets import masked
from dovetail.config.report.show import (
    DEFAULT,
    MODEL,
    Found,
    Shown,
    facts,
    resolved,
    rows_of,
    sampling_rows,
)
from dovetail.interfaces.data.spec import EngineSpec, Selection

_SEVERAL = ("shares",)
"""Fields that repeat the spec for each engine."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One flag, or one field of requests. `is_chosen`: it is not just a default."""

    group: str
    name: str
    value: Any
    origin: str
    is_chosen: bool


class PluginInForce(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin in use, and the origin of that choice."""

    kind: str
    name: str
    distribution: str
    target: str
    options: dict[str, Any]
    origin: str


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """`sampling` contains the defaults for requests, `facts` the decisions that have no flag."""

    settings: tuple[Setting, ...]
    sampling: tuple[Setting, ...]
    plugins: tuple[PluginInForce, ...]
    facts: dict[str, Any]


def in_force(
    config: Config, spec: EngineSpec, found: Found, further: Iterable[Selection] = ()
) -> InForce:
    """Return a server's settings. `found` contains decisions made outside of `config.resolve`,
    `further` the plugins that the spec does not name."""
    rows = rows_of(config, {**resolved(config, spec), **found})
    origins = {row.name: row.origin for row in rows}
    return InForce(
        settings=tuple(map(_setting, rows)),
        sampling=tuple(map(_setting, sampling_rows(config, spec))),
        plugins=tuple(_plugins([*selections(spec), *further], origins)),
        facts=masked(msgspec.to_builtins(facts(spec))),
    )


def selections(value: Any) -> Iterator[Selection]:
    """Yield every plugin that a spec names, in its order."""
    if isinstance(value, Selection):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if name not in _SEVERAL:
                yield from selections(getattr(value, name))
    elif isinstance(value, tuple):
        for inner in value:
            yield from selections(inner)


def _setting(row: Shown) -> Setting:
    return Setting(
        group=row.group,
        name=row.name,
        value=msgspec.to_builtins(row.value, str_keys=True),
        origin=row.origin,
        is_chosen=row.is_chosen,
    )


def _plugins(chosen: Iterable[Selection], origins: dict[str, str]) -> Iterator[PluginInForce]:
    """Yield each plugin once. The model chose the ones without a flag."""
    once = {(one.kind, one.name, one.target): one for one in chosen}
    for one in once.values():
        yield PluginInForce(
            kind=one.kind,
            name=one.name,
            distribution=one.distribution,
            target=one.target,
            options=masked(msgspec.to_builtins(one.options, str_keys=True)),
            origin=_origin(one.kind, origins),
        )


def _origin(kind: str, origins: dict[str, str]) -> str:
    """Return a plugin choice's origin: that of the first flag of its kind that was set."""
    known = registry.KINDS.get(kind)
    if known is None:
        return DEFAULT
    names = [flag.removeprefix("--").replace("-", "_") for flag in known.flags]
    own_origins = [origins[name] for name in names if name in origins]
    if not own_origins:
        return MODEL
    return next((origin for origin in own_origins if origin != DEFAULT), DEFAULT)
