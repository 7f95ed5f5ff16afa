"""Config: all groups of settings together, built from flags, YAML or keyword arguments.

Contains what the user asked for; `config.resolve` turns it into an EngineSpec.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self, TextIO

from dovetail.config.compat.deprecated_flags import flag_of, translate
from dovetail.config.sections.attention import AttentionConfig
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.convert import from_value, merge_deep
from dovetail.config.sections.device import DeviceConfig
from dovetail.config.sections.engine import EngineConfig
from dovetail.config.sections.field import MISSING, Flag, flags_of
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.config.sections.load import LoadConfig
from dovetail.config.sections.lora import LoRAConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.multimodal import MultiModalConfig
from dovetail.config.sections.observability import ObservabilityConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.config.sections.prompt_adapter import PromptAdapterConfig
from dovetail.config.sections.scheduler import SchedulerConfig
from dovetail.config.sections.speculative import SpeculativeConfig
from dovetail.config.sections.structured_outputs import StructuredOutputsConfig
from dovetail.errors import ConfigError

DEMO_ORIGIN = "demo model"
"""Origin of fields that the user left out and that the bundled demo model sets."""

GROUPS: dict[str, type[object]] = {
    "model": ModelConfig,
    "load": LoadConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "speculative": SpeculativeConfig,
    "structured": StructuredOutputsConfig,
    "lora": LoRAConfig,
    "prompt_adapter": PromptAdapterConfig,
    "multimodal": MultiModalConfig,
    "parallel": ParallelConfig,
    "device": DeviceConfig,
    "attention": AttentionConfig,
    "observability": ObservabilityConfig,
    "frontend": FrontendConfig,
    "gateway": GatewayConfig,
    "plugin": PluginConfig,
    "engine": EngineConfig,
}
"""Field of Config -> its dataclass, in the order of help and docs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings that the user gave.

    `origins` contains where each given field came from, `notes` which deprecated names were
    translated, `warnings` what was set under an unknown name. `is_checked` means that
    `rules.checks.checked` found no fault in it; a copy with other fields is unchecked again.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    structured: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    prompt_adapter: PromptAdapterConfig = field(default_factory=PromptAdapterConfig)
    multimodal: MultiModalConfig = field(default_factory=MultiModalConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    frontend: FrontendConfig = field(default_factory=FrontendConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    plugin: PluginConfig = field(default_factory=PluginConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_checked: bool = field(default=False, compare=False)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], *, origin: str = "call") -> Self:
        """Return the config with these fields set, the rest at their defaults.

        Raises: ConfigError for an unknown field (naming the nearest) or a wrong value.
        """
        return cls().with_fields(fields, origin=origin)

    def with_fields(self, fields: Mapping[str, Any], *, origin: str = "call") -> Self:
        """Return a copy with these fields replaced, values converted and bounds checked.

        Translates deprecated names. A JSON object is merged into an earlier one key by key; an
        empty one clears it. Raises: ConfigError, also if a deprecated and a newer name disagree.
        """
        with _from_origin(origin):
            today, notes = _today(fields)
            values = {name: from_value(find_flag(name), value) for name, value in today.items()}
        laid = {name: self._laid(name, value) for name, value in values.items()}
        parts = {
            part: dataclasses.replace(getattr(self, part), **_own(group, laid))
            for part, group in GROUPS.items()
        }
        origins = {**self.origins, **dict.fromkeys(values, origin)}
        notes = tuple(dict.fromkeys((*self.notes, *notes)))
        return dataclasses.replace(self, **parts, origins=origins, notes=notes, is_checked=False)

    def with_notes(self, notes: Iterable[str], warnings: Iterable[str] = ()) -> Self:
        """Return a copy with additional notes and warnings for the user."""
        return dataclasses.replace(
            self, notes=(*self.notes, *notes), warnings=(*self.warnings, *warnings)
        )

    def tell(self, stream: TextIO) -> None:
        """Write warnings and notes, a line each; --no-show-notes hides the notes."""
        notes = self.notes if self.observability.show_notes else ()
        for word, lines in (("warning", self.warnings), ("note", notes)):
            for line in lines:
                print(f"dovetail: {word}: {line}", file=stream)

    def _laid(self, name: str, value: Any) -> Any:
        """Return a value, merged into an earlier one if both are objects."""
        if not isinstance(value, Mapping) or not value or not self.is_given(name):
            return value
        merged = copy.deepcopy(dict(self.value(name)))
        merge_deep(merged, value)
        return merged

    def is_given(self, name: str) -> bool:
        """Return whether the user set the field, even to its default."""
        return name in self.origins

    def value(self, name: str) -> Any:
        """Return the value of a flag by its field name."""
        return getattr(getattr(self, part_of(name)), name)

    def shown(self) -> dict[str, Any]:
        """Return the fields that the user gave, ready to print: secrets become ***."""
        given = sorted(name for name, origin in self.origins.items() if origin != DEMO_ORIGIN)
        return {name: shown(flags()[name], self.value(name)) for name in given}


@contextmanager
def _from_origin(origin: str) -> Iterator[None]:
    """Add the file or the variable that a value came from to the `where` of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        if origin not in ("command line", "call"):
            error.where = f"{error.where} (from {origin})"
        raise


def _today(fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields with deprecated names translated, and a note for each such name."""
    found = {name: flag_of(name) for name in fields if name not in flags()}
    others = {name: flag for name, flag in found.items() if flag is not None}
    today = {name: value for name, value in fields.items() if name not in others}
    notes = []
    for name, flag in others.items():
        current, note = translate(name, from_value(flag, fields[name]))
        notes.append(note)
        for target, value in current.items():
            today[target] = _agreed(flag.spelling, target, today.get(target, MISSING), value)
    return today, tuple(sorted(notes))


def _agreed(spelling: str, target: str, there: Any, value: Any) -> Any:
    """Return a field's value after a deprecated name has set it too. Raises: ConfigError."""
    if there is MISSING or there == value:
        return value
    if isinstance(there, Mapping) and isinstance(value, Mapping):
        keys = {
            key: _agreed(spelling, target, there.get(key, MISSING), value[key]) for key in value
        }
        return {**there, **keys}
    raise ConfigError(
        f"asks for {value!r}, but {find_flag(target).spelling} for {there!r}.",
        where=spelling,
        fix=f"leave {spelling} out.",
    )


def shown(flag: Flag, value: Any) -> Any:
    """Return a value ready to print."""
    return "***" if flag.meta.secret and value else value


@cache
def flags() -> dict[str, Flag]:
    """Return every flag by field name."""
    return {flag.name: flag for group in GROUPS.values() for flag in flags_of(group)}


@cache
def part_of(name: str) -> str:
    """Return the field of Config that contains this flag."""
    return next(part for part, group in GROUPS.items() if group.__name__ == flags()[name].group)


def find_flag(name: str) -> Flag:
    """Return the flag of this field name. Raises: ConfigError with the nearest names."""
    if name in flags():
        return flags()[name]
    raise ConfigError("there is no such setting.", where=name, fix=nearest_fix(name, flags()))


def nearest_fix(
    word: str,
    known: Iterable[str],
    otherwise: str = "`dovetail serve --help=all` lists every setting.",
) -> str:
    """Return a hint: the known words nearest to `word`, or `otherwise`."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _own(group: type[object], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {flag.name for flag in flags_of(group)}
    return {name: value for name, value in values.items() if name in names}
