"""Config: all groups of settings together, built from flags, YAML or keyword arguments.

Says what the user asked for; `config.resolve` says what comes of it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from dovetail.config.attention import AttentionConfig
from dovetail.config.cache import CacheConfig
from dovetail.config.convert import from_value
from dovetail.config.device import DeviceConfig
from dovetail.config.field import Flag, flags_of
from dovetail.config.frontend import FrontendConfig
from dovetail.config.load import LoadConfig
from dovetail.config.model import ModelConfig
from dovetail.config.observability import ObservabilityConfig
from dovetail.config.parallel import ParallelConfig
from dovetail.config.plugin import PluginConfig
from dovetail.config.scheduler import SchedulerConfig
from dovetail.config.speculation import SpeculationConfig
from dovetail.errors import ConfigError

GROUPS: dict[str, type[object]] = {
    "model": ModelConfig,
    "load": LoadConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "speculation": SpeculationConfig,
    "parallel": ParallelConfig,
    "device": DeviceConfig,
    "attention": AttentionConfig,
    "observability": ObservabilityConfig,
    "frontend": FrontendConfig,
    "plugin": PluginConfig,
}
"""Field of Config -> its dataclass, in the order of help and docs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that was asked for. `origins` says where each given field came from."""

    model: ModelConfig = field(default_factory=ModelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    plugin: PluginConfig = field(default_factory=PluginConfig)
    origins: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], *, origin: str = "call") -> Self:
        """Return the config with these fields set, the rest at their defaults.

        Raises: ConfigError for an unknown field (naming the nearest) or a wrong value.
        """
        return cls().with_fields(fields, origin=origin)

    def with_fields(self, fields: Mapping[str, Any], *, origin: str = "call") -> Self:
        """Return a copy with these fields replaced, values converted and bounds checked."""
        values = {name: from_value(find_flag(name), value) for name, value in fields.items()}
        parts = {
            part: dataclasses.replace(getattr(self, part), **_own(group, values))
            for part, group in GROUPS.items()
        }
        origins = {**self.origins, **dict.fromkeys(values, origin)}
        return dataclasses.replace(self, **parts, origins=origins)

    def is_given(self, name: str) -> bool:
        """Return whether the field was set by anyone, be it to its default."""
        return name in self.origins

    def value(self, name: str) -> Any:
        """Return the value of a flag by its field name."""
        return getattr(getattr(self, part_of(name)), name)

    def shown(self) -> dict[str, Any]:
        """Return the given fields as they may be printed: secrets become ***."""
        return {name: shown(flags()[name], self.value(name)) for name in sorted(self.origins)}


def shown(flag: Flag, value: Any) -> Any:
    """Return a value as it may be printed."""
    return "***" if flag.meta.secret and value else value


@cache
def flags() -> dict[str, Flag]:
    """Return every flag by field name."""
    return {flag.name: flag for group in GROUPS.values() for flag in flags_of(group)}


@cache
def part_of(name: str) -> str:
    """Return the field of Config in which a flag lives."""
    return next(part for part, group in GROUPS.items() if group.__name__ == flags()[name].group)


def find_flag(name: str) -> Flag:
    """Return the flag of this field name. Raises: ConfigError with the nearest names."""
    if name in flags():
        return flags()[name]
    raise ConfigError("there is no such setting.", where=name, fix=nearest_fix(name, flags()))


def nearest_fix(word: str, known: Iterable[str]) -> str:
    """Return a hint: the known words nearest to `word`, or where all are listed."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "`dovetail serve --help=all` lists every setting."


def _own(group: type[object], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {flag.name for flag in flags_of(group)}
    return {name: value for name, value in values.items() if name in names}
