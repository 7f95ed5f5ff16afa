"""Plugin: what every class that can be chosen by name declares about itself.

Imports nothing else of dovetail and no torch, so that a registry can inspect plugins cheaply. The
name used in flags is not here: it is stated once, in the entry point.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from typing import Any, ClassVar

from dovetail.errors import with_fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """The facts of a plugin that `dovetail plugins show` prints.

    `requires` lists importable module names, `extra` the dovetail extra that installs them,
    `devices` the device types it can run on (empty: any).
    """

    summary: str
    source: str = ""
    requires: tuple[str, ...] = ()
    extra: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """The options of a plugin that has none."""


def _is_installed(name: str) -> bool:
    """Return whether a module can be found. For "a.b" the package a is imported, b is not."""
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class Plugin(ABC):
    """Base of every plugin class, whatever its kind.

    A kind's ABC sets `interface_version` and `known_capabilities` (each word with one sentence). An
    implementation sets `info` and, as needed, `capabilities`, `Options` (a frozen, keyword-only
    dataclass whose fields carry `metadata={"help": ...}`) and `expected_failures` (clause name ->
    reason).
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {}

    info: ClassVar[Info]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    expected_failures: ClassVar[Mapping[str, str]] = {}
    Options: ClassVar[type[Any]] = NoOptions
    auto_rank: ClassVar[int] = 0
    """If several plugins fit, "auto" chooses the highest rank."""

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why this plugin cannot run on this machine, or None.

        Does not import the packages it looks for. The text ends with the command that fixes it.
        """
        missing = [name for name in cls.info.requires if not _is_installed(name)]
        if not missing:
            return None
        remedy = f"dovetail-llm[{cls.info.extra}]" if cls.info.extra else " ".join(missing)
        names = ", ".join(f'"{name}"' for name in missing)
        return with_fix(f"package {names} is not installed", f'run `pip install "{remedy}"`')

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return the reasons why this plugin does not fit `query`; empty when it fits.

        The type of `query` depends on the kind (see the kind's interface); None checks nothing.
        """
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The plugin of a value kind: a constant with a name (a dtype, a hash, a log level).

    The entry point names a module-level instance. `value` is what core receives.
    """

    interface_version: ClassVar[int] = 1
    summary: str
    value: Any
    requires: tuple[str, ...] = ()
    extra: str = ""

    def unavailable_reason(self) -> str | None:
        """Return why this value cannot be used on this machine, or None."""
        missing = [name for name in self.requires if not _is_installed(name)]
        if not missing:
            return None
        remedy = f"dovetail-llm[{self.extra}]" if self.extra else " ".join(missing)
        what = f"package {', '.join(missing)} is not installed"
        return with_fix(what, f'run `pip install "{remedy}"`')
