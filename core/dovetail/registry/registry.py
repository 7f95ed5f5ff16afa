"""Registry: resolves a name to a checked class, with helpful error messages.

`Catalog` finds an entry by its metadata; loading imports that one plugin. It does not depend on
what any kind is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.errors import (
    BrokenPlugin,
    ConfigError,
    DovetailError,
    PluginError,
    UnavailablePlugin,
    split_fix,
)
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.plugin import Plugin, Value
from dovetail.registry import files
from dovetail.registry.catalog import Catalog
from dovetail.registry.entry import Entry, Status
from dovetail.registry.foreign_files import Importer
from dovetail.registry.kinds import Kind, kind_named
from dovetail.registry.options import given_options, options_for, options_place
from dovetail.registry.select import Candidate, pick, reasons_against
from dovetail.registry.verify import verify

AUTO = "auto"
OWN_PACKAGES = ("dovetail", "dovetail_plugins", "dovetail_kernels")
Loaded = type[Plugin] | Value


class Registry:
    """Loads the plugins of a catalog. There is one instance per process: `default`."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._loaded: dict[tuple[str, str], Loaded] = {}

    def load(self, kind: str, spec: str | None = None, *, where: str | None = None) -> Any:
        """Return the plugin class (or Value), imported, verified and available here.

        `spec` None uses the kind's default. Raises: as `find`, BrokenPlugin, UnavailablePlugin.
        """
        table = kind_named(kind)
        name = _spec(table, spec, where or table.where)
        return self.load_entry(self.catalog.find_used(kind, name, where=where), where=where)

    def load_entry(self, entry: Entry, *, where: str | None = None) -> Any:
        """Return the plugin of an entry. Raises: BrokenPlugin, UnavailablePlugin."""
        place = f"{where or kind_named(entry.kind).where} {entry.name}"
        try:
            plugin = self.load_target(entry.kind, entry.target)
            reason = plugin.unavailable_reason()
        except BrokenPlugin as error:
            text = f"{error.where}: {error.what}" if error.where else error.what
            raise BrokenPlugin(_offered(entry, text), where=place, fix=error.fix) from error
        except ConfigError:
            raise
        except Exception as error:
            text = f"unavailable_reason() raised {type(error).__name__}: {error}"
            raise BrokenPlugin(_offered(entry, text), where=place) from error
        if reason is not None:
            raise _unavailable(f"registered by {entry.distribution} but unavailable", reason, place)
        return plugin

    def load_target(self, kind: str, target: str) -> Loaded:
        """Return the plugin of a target, verified; its availability is not checked.

        A start loads a hundred of dovetail's own; tests/meta/test_entry_points.py verifies those.
        """
        key = (kind, target)
        if key not in self._loaded:
            plugin = files.import_target(target, self._importer_of)
            if not _is_own(target):
                verify(kind, plugin, target)
            self._loaded[key] = plugin
        return self._loaded[key]

    def foreign(self) -> list[Entry]:
        """Return the entries of the loaded plugins whose code is not dovetail's own."""
        return [
            self.catalog.entry_of(kind, target)
            for kind, target in list(self._loaded)
            if not _is_own(target)
        ]

    def status(self, entry: Entry) -> Status:
        """Return whether the entry can be selected; imports its plugin."""
        try:
            self.load_entry(entry)
        except UnavailablePlugin as error:
            return Status(word="unavailable", reason=str(error))
        except ConfigError as error:
            return Status(word="broken", reason=str(error))
        return Status(word="ok")

    def choose(
        self,
        kind: str,
        spec: str | None = None,
        *,
        query: Any = None,
        options: Mapping[str, Any] | None = None,
        where: str | None = None,
    ) -> Selection:
        """Return a choice as data, checked: it loads, it fits `query`, its options are valid.

        `spec` None uses the kind's default; "auto" ranks every entry that fits.
        Raises: PluginError and its subclasses, ConfigError for options.
        """
        table = kind_named(kind)
        place = where or table.where
        entry, plugin = self._resolve(table, _spec(table, spec, place), query, place)
        if isinstance(plugin, Value):
            if options:
                raise ConfigError("a constant has no options.", where=f"{place} {entry.name}")
            return selection_of(entry, {})
        where = options_place(table, entry.name)
        return selection_of(entry, given_options(plugin, options or {}, where=where))

    def defer(
        self,
        kind: str,
        spec: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        where: str | None = None,
    ) -> Selection:
        """Return a choice without importing its class: the child process that loads it checks it.

        For processes that must not import torch. "auto" works only if a single plugin is offered.
        Raises: UnknownPlugin, AmbiguousPlugin.
        """
        table = kind_named(kind)
        place = where or table.where
        wanted = _spec(table, spec, place)
        if wanted == AUTO and AUTO not in self.catalog.names(kind):
            offered = _one_per_target(self.catalog.entries(kind))
            if len(offered) != 1:
                raise PluginError(f'"{AUTO}" needs the plugins to be loaded.', where=place)
            return selection_of(offered[0], dict(options or {}))
        return selection_of(self.catalog.find_used(kind, wanted, where=where), dict(options or {}))

    def load_selection(self, selection: Selection) -> Any:
        """Return the class (or Value) of a selection; the parent's checks are not repeated."""
        return self.load_target(selection.kind, selection.target)

    def require_selection(self, selection: Selection) -> Any:
        """Return the class of a selection that is about to be used, deferred ones too.

        Raises: BrokenPlugin, UnavailablePlugin
        """
        plugin = self.load_selection(selection)
        reason = plugin.unavailable_reason()
        if reason is not None:
            place = f"{kind_named(selection.kind).where} {selection.name}"
            raise _unavailable("unavailable", reason, place)
        return plugin

    def build_options(self, selection: Selection) -> Any:
        """Return the Options object of a selection's plugin."""
        return options_for(_class(self.load_selection(selection)), selection.options)

    def make(self, selection: Selection, *args: Any) -> Any:
        """Return an instance of a selection's plugin, constructed with its options and `args`.

        Raises: BrokenPlugin, naming the plugin, when its constructor raises an error that is not
        one of dovetail's own.
        """
        plugin = self.require_selection(selection)
        options = self.build_options(selection)
        try:
            return plugin(options, *args)
        except DovetailError:
            raise
        except Exception as error:
            raise BrokenPlugin(
                f"making it raised {type(error).__name__}: {error}.",
                where=f"{kind_named(selection.kind).where} {selection.name}",
                fix=f"mend {selection.target}, or choose another.",
            ) from error

    def load_file(self, path: str | Path) -> list[Entry]:
        """Import a file, and add and return the entries that its @register decorators made.

        Raises: ConfigError when there is no such file or it registers nothing, BrokenPlugin.
        """
        entries = files.entries_of(Path(path), self._importer_of)
        self.catalog.add(entries)
        return entries

    @contextmanager
    def with_entries(
        self, added: Mapping[str, Mapping[str, str]], *, only: bool = False
    ) -> Iterator[None]:
        """Add entries as `Catalog.with_entries` does, and forget what is loaded meanwhile."""
        before = dict(self._loaded)
        try:
            with self.catalog.with_entries(added, only=only):
                yield
        finally:
            self._loaded = before

    def _importer_of(self, roots: set[str]) -> Importer | None:
        """Return the importer of files that import these modules. Raises: as `load_entry`"""
        for entry in self.catalog.entries("file_importer"):
            if entry.name in roots:
                importer: Importer = self.load_entry(entry).value
                return importer
        return None

    def _resolve(self, kind: Kind, spec: str, query: Any, place: str) -> tuple[Entry, Loaded]:
        if spec == AUTO and kind.auto and AUTO not in self.catalog.names(kind.name):
            entries = _one_per_target(self.catalog.entries(kind.name))
            best = pick(kind, [self._candidate(entry) for entry in entries], query, place)
            return best.entry, self.load_entry(best.entry, where=place)
        entry = self.catalog.find_used(kind.name, spec, where=place)
        plugin = self.load_entry(entry, where=place)
        reasons = [] if isinstance(plugin, Value) else reasons_against(plugin, query)
        if reasons:
            others = ", ".join(name for name in self.catalog.names(kind.name) if name != entry.name)
            fix = "choose auto." if kind.auto else f"choose another of: {others or 'none'}."
            what = f"does not fit: {'; '.join(reasons)}."
            raise PluginError(what, where=f"{place} {entry.name}", fix=fix)
        return entry, plugin

    def _candidate(self, entry: Entry) -> Candidate:
        try:
            return Candidate(entry=entry, plugin=_class(self.load_entry(entry)))
        except ConfigError as error:
            return Candidate(entry=entry, reason=error.what.rstrip("."))


def _is_own(target: str) -> bool:
    """Return whether a target's code is dovetail's own."""
    return target.partition(":")[0].partition(".")[0] in OWN_PACKAGES


def _spec(kind: Kind, spec: str | None, place: str) -> str:
    if spec is not None:
        return spec
    if kind.default is None:
        raise PluginError(f"no {kind.name} was named, and none is the default.", where=place)
    return kind.default


def selection_of(entry: Entry, options: dict[str, Any]) -> Selection:
    """Return an entry as data for other processes."""
    return Selection(
        kind=entry.kind,
        name=entry.name,
        target=entry.target,
        distribution=entry.distribution,
        options=options,
    )


def _unavailable(what: str, reason: str, where: str) -> UnavailablePlugin:
    cause, fix = split_fix(reason)
    return UnavailablePlugin(f"{what}: {cause}", where=where, fix=fix)


def _offered(entry: Entry, text: str) -> str:
    return f"registered by {entry.distribution} but broken: {text}"


def _one_per_target(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without aliases: of each target the name of its module, or the first."""
    found: dict[str, Entry] = {}
    for entry in entries:
        module = entry.target.partition(":")[0].rpartition(".")[2]
        if entry.target not in found or entry.name == module:
            found[entry.target] = entry
    return list(found.values())


def _class(plugin: Loaded) -> type[Plugin]:
    if isinstance(plugin, Value):
        raise ConfigError("a constant has no options and is never chosen by auto.")
    return plugin


default = Registry()
"""The registry of this process."""
