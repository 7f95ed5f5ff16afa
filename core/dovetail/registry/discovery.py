"""Finds all entries: scans installed metadata and, in a source tree, pyproject tables.

In a checkout the pyproject table decides: entries that an earlier editable install recorded are
ignored. Reads only text files, imports no plugin. `importlib.metadata` rereads every file on each
call, so the scan is cached.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.registry.entry import BUILT_IN, Entry, Origin
from dovetail.registry.names import normal

ALLOW_VARIABLE = "DOVETAIL_PLUGINS"
FOREIGN_VARIABLE = "VLLM_PLUGINS"
_PREFIX = "dovetail."
_SOURCE_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySource:
    """One distribution's entries, by group without its "dovetail." (a kind, or "hooks")."""

    distribution: str
    origin: Origin
    groups: Mapping[str, Mapping[str, str]]

    def entries(self) -> Iterator[Entry]:
        """Yield its entries in the order they are written."""
        for group, names in self.groups.items():
            for name, target in names.items():
                yield Entry(
                    kind=group,
                    name=name,
                    distribution=self.distribution,
                    target=target,
                    origin=self.origin,
                )


@cache
def scan() -> tuple[Entry, ...]:
    """Return every entry of every allowed distribution. The result is cached: see `forget`."""
    checkout = list(_checkout_sources(_SOURCE_ROOT))
    own = {normal(source.distribution) for source in checkout}
    installed = [s for s in _installed_sources() if normal(s.distribution) not in own]
    allowed = allowed_plugins()
    return tuple(
        entry
        for source in [*checkout, *installed]
        for entry in source.entries()
        if allowed is None or _is_allowed(entry, allowed)
    )


@cache
def scan_kind(kind: str) -> tuple[Entry, ...]:
    """Return the scanned entries of one kind; cached for a hundred calls at each start."""
    return tuple(entry for entry in scan() if entry.kind == kind)


def forget() -> None:
    """Make the next `scan` look again."""
    scan.cache_clear()
    scan_kind.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Allowed plugins: whole distributions, and plugins of these names."""

    distributions: frozenset[str]
    names: frozenset[str] = frozenset()


def allowed_plugins() -> Allowed | None:
    """Return what may be used, or None for everything.

    DOVETAIL_PLUGINS unset allows all; empty, only the built-ins; a list of distributions, those and
    the built-ins. If it is not set, VLLM_PLUGINS is used, whose list may also name plugins.
    """
    listed = os.environ.get(ALLOW_VARIABLE)
    if listed is not None:
        return Allowed(distributions=_with_built_in(_words(listed)))
    listed = os.environ.get(FOREIGN_VARIABLE)
    if listed is None:
        return None
    return Allowed(distributions=_with_built_in(_words(listed)), names=frozenset(_words(listed)))


def _words(listed: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", listed) if name]


def _with_built_in(names: Iterable[str]) -> frozenset[str]:
    return frozenset(normal(name) for name in (BUILT_IN, *names))


def _is_allowed(entry: Entry, allowed: Allowed) -> bool:
    return normal(entry.distribution) in allowed.distributions or entry.name in allowed.names


def _installed_sources() -> Iterator[EntrySource]:
    seen: set[str] = set()
    for distribution in metadata.distributions():
        text = distribution.read_text("entry_points.txt") or ""
        if f"[{_PREFIX}" not in text:
            continue
        name = str(distribution.name)
        if normal(name) not in seen:  # an earlier folder of sys.path hides a later one
            seen.add(normal(name))
            yield EntrySource(distribution=name, origin="installed", groups=_groups(distribution))


def _groups(distribution: metadata.Distribution) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for point in distribution.entry_points:
        if point.group.startswith(_PREFIX):
            groups.setdefault(point.group.removeprefix(_PREFIX), {})[point.name] = point.value
    return groups


def _checkout_sources(root: Path) -> Iterator[EntrySource]:
    """Yield the tables of a source tree: dovetail's, and each contrib's that is on sys.path."""
    if not (root / "pyproject.toml").is_file() or not (root / "core" / "dovetail").is_dir():
        return
    yield _read_project(root / "pyproject.toml")
    on_path = {str(Path(folder).resolve()) for folder in sys.path if folder}
    for file in sorted(root.glob("contrib/*/pyproject.toml")):
        if str(file.parent) in on_path:
            yield _read_project(file)


def _read_project(file: Path) -> EntrySource:
    try:
        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ConfigError(f"no readable [project] table: {error}.", where=str(file)) from error
    tables: dict[str, dict[str, str]] = project.get("entry-points", {})
    groups = {
        group.removeprefix(_PREFIX): names
        for group, names in tables.items()
        if group.startswith(_PREFIX)
    }
    return EntrySource(distribution=project["name"], origin="checkout", groups=groups)
