"""Registry: resolves a name to a checked class, with helpful error messages.

Holds this process's entries: discovered ones, those of files, those of tests. Finding reads only
metadata; loading imports one plugin. It does not depend on what any kind is for.
"""

from __future__ import annotations

import logging
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
from dovetail.registry import discovery, files, names
from dovetail.registry.entry import BUILT_IN, Entry, Status
from dovetail.registry.foreign_files import Importer, imported_roots, package_advice
from dovetail.registry.kinds import KINDS, Kind, kind_named
from dovetail.registry.moved import unknown_groups
from dovetail.registry.options import describe_options, given_options, options_for, options_place
from dovetail.registry.select import Candidate, pick, reasons_against
from dovetail.registry.verify import verify

logger = logging.getLogger("dovetail.registry")

AUTO = "auto"
HOOKS = "hooks"
OWN_PACKAGES = ("dovetail", "dovetail_plugins", "dovetail_kernels")
Loaded = type[Plugin] | Value


class Registry:
    """All plugins this process can name. There is one instance per process: see the package."""

    def __init__(self) -> None:
        self._added: list[Entry] = []
        self._blocked: frozenset[str] = frozenset()
        self._shows_discovered = True
        self._loaded: dict[tuple[str, str], Loaded] = {}

    def entries(self, kind: str) -> list[Entry]:
        """Return the entries of a kind sorted by name; imports nothing."""
        return self._entries_of(kind_named(kind).name)

    def hook_entries(self) -> list[Entry]:
        """Return the hook modules (group "dovetail.hooks") sorted by name; imports nothing."""
        return self._entries_of(HOOKS)

    def lost(self) -> list[str]:
        """Return a sentence for each package's entry-point group that belongs to no kind."""
        return list(unknown_groups(self._all(), (*KINDS, HOOKS)))

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted, each once; imports nothing."""
        return list(dict.fromkeys(entry.name for entry in self.entries(kind)))

    def find(self, kind: str, spec: str, *, where: str | None = None) -> Entry:
        """Return the entry for a name, name@distribution, package.module:Class or file.py:Class.

        Imports nothing. Raises: UnknownPlugin with the nearest names, AmbiguousPlugin.
        """
        place = where or kind_named(kind).where
        if ":" in spec:
            return names.entry_of_target(kind, spec, place)
        matches = self._matches(kind, spec, place)
        if len(matches) > 1:
            raise names.ambiguous(kind, spec, matches, place, flag=kind_named(kind).choosing_flag)
        return matches[0]

    def find_used(self, kind: str, spec: str, *, where: str | None = None) -> Entry:
        """Return the entry for a name as `find` does, or dovetail's own for a default's name.

        The user did not choose a default: another package that offers its name too must change
        nothing. A name that the user writes goes through `find` first, which reports the ambiguity.
        """
        if spec == kind_named(kind).default and ":" not in spec:
            matches = self._matches(kind, spec, where or kind_named(kind).where)
            own = [entry for entry in matches if entry.is_own]
            if len(matches) > 1 and own:
                logger.debug("%s %s: dovetail's own, of %d", kind, spec, len(matches))
                return own[0]
        return self.find(kind, spec, where=where)

    def own(self, kind: str, name: str) -> str:
        """Return the spelling that selects dovetail's own plugin of this name."""
        offers = [entry for entry in self.entries(kind) if entry.name == name]
        is_shared = len(offers) > 1 and any(e.is_own for e in offers)
        return f"{name}@{BUILT_IN}" if is_shared else name

    def _matches(self, kind: str, spec: str, place: str) -> list[Entry]:
        """Return the entries that a name refers to. Raises: UnknownPlugin"""
        found = [entry for entry in self.entries(kind) if names.is_named(entry, spec)]
        if not found:
            raise names.unknown(kind, spec, place, names=self.names(kind), hidden=list(self._all()))
        return found

    def load(self, kind: str, spec: str | None = None, *, where: str | None = None) -> Any:
        """Return the plugin class (or Value), imported, verified and available here.

        `spec` None uses the kind's default. Raises: as `find`, BrokenPlugin, UnavailablePlugin.
        """
        table = kind_named(kind)
        name = self._spec(table, spec, where or table.where)
        return self.load_entry(self.find_used(kind, name, where=where), where=where)

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
        """Return the plugin of a target, verified; its availability is not checked."""
        key = (kind, target)
        if key not in self._loaded:
            plugin = files.import_target(target, self._importer_of)
            verify(kind, plugin, target)
            self._loaded[key] = plugin
        return self._loaded[key]

    def foreign(self) -> list[Entry]:
        """Return the entries of the loaded plugins whose code is not dovetail's own."""
        return [
            self._entry_of(kind, target)
            for kind, target in list(self._loaded)
            if target.partition(":")[0].partition(".")[0] not in OWN_PACKAGES
        ]

    def _entry_of(self, kind: str, target: str) -> Entry:
        known = (entry for entry in self.entries(kind) if entry.target == target)
        return next(known, None) or names.entry_of_target(kind, target, "")

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
        entry, plugin = self._resolve(table, self._spec(table, spec, place), query, place)
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
        wanted = self._spec(table, spec, place)
        if wanted == AUTO and AUTO not in self.names(kind):
            offered = _one_per_target(self.entries(kind))
            if len(offered) != 1:
                raise PluginError(f'"{AUTO}" needs the plugins to be loaded.', where=place)
            return selection_of(offered[0], dict(options or {}))
        return selection_of(self.find_used(kind, wanted, where=where), dict(options or {}))

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
        return options_for(
            _class(self.load_target(selection.kind, selection.target)), selection.options
        )

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
        """Import a file and return the entries that its @register decorators made.

        Raises: ConfigError when there is no such file or it registers nothing, BrokenPlugin.
        """
        file = Path(path).expanduser().resolve()
        module = files.import_file(file, self._importer_of).__name__
        entries = [
            Entry(
                kind=kind_named(registration.kind).name,
                name=registration.name,
                distribution=file.name,
                target=f"{file}:{registration.attribute}",
                origin="file",
            )
            for registration in files.registrations
            if registration.module == module
        ]
        if not entries:
            raise ConfigError(
                "the file registers no plugin.",
                where=str(path),
                fix=package_advice(imported_roots(file))
                or 'write @register("<kind>", "<name>") above its class.',
            )
        known = {(entry.kind, entry.id) for entry in self._added}
        self._added += [entry for entry in entries if (entry.kind, entry.id) not in known]
        return entries

    def block(self, hidden: Iterable[str]) -> list[str]:
        """Hide plugins: each name is a distribution, name, name@distribution or kind:name.

        Returns the new names that hide nothing. Mutates: self
        """
        fresh = frozenset(hidden) - self._blocked
        self._blocked = self._blocked | fresh
        known = set().union(*(names.words(entry) for entry in self._all())) if fresh else set()
        return sorted(word for word in fresh if not names.hiding_words(word) & known)

    @contextmanager
    def with_entries(
        self, added: Mapping[str, Mapping[str, str]], *, only: bool = False
    ) -> Iterator[None]:
        """Add entries {kind: {name: target}} inside the with block; `only` hides all others.

        Plugins loaded, added from files and hidden inside the block are forgotten at its end.
        """
        before = self._added, self._shows_discovered, self._blocked, dict(self._loaded)
        entries = [
            Entry(
                kind=kind if kind == HOOKS else kind_named(kind).name,
                name=name.partition("@")[0],
                distribution=name.partition("@")[2] or "test",
                target=target,
                origin="test",
            )
            for kind, names in added.items()
            for name, target in names.items()
        ]
        self._added = entries if only else [*self._added, *entries]
        self._shows_discovered = self._shows_discovered and not only
        try:
            yield
        finally:
            self._added, self._shows_discovered, self._blocked, self._loaded = before

    def describe(self) -> list[dict[str, Any]]:
        """Return every kind with its entries, statuses and options, as plain data for docs.

        Imports every plugin.
        """
        return [self._describe_kind(kind) for kind in KINDS.values()]

    def describe_entry(self, entry: Entry) -> dict[str, Any]:
        """Return everything known about one entry as plain data; imports its plugin."""
        status = self.status(entry)
        facts: dict[str, Any] = {**describe_metadata(entry), "status": status.word}
        facts["reason"] = status.reason
        if status.word == "broken":
            return facts
        return facts | _describe_plugin(self.load_target(entry.kind, entry.target))

    def _importer_of(self, roots: set[str]) -> Importer | None:
        """Return the importer of files that import these modules. Raises: as `load_entry`"""
        for entry in self.entries("file_importer"):
            if entry.name in roots:
                importer: Importer = self.load_entry(entry).value
                return importer
        return None

    def _describe_kind(self, kind: Kind) -> dict[str, Any]:
        return {
            "kind": kind.name,
            "summary": kind.summary,
            "flags": list(kind.flags),
            "group": kind.group,
            "interface": kind.interface,
            "default": kind.default,
            "auto": kind.auto,
            "entries": [self.describe_entry(entry) for entry in self.entries(kind.name)],
        }

    def _entries_of(self, group: str) -> list[Entry]:
        discovered = discovery.scan_kind(group) if self._shows_discovered else ()
        added = (entry for entry in self._added if entry.kind == group)
        found = {entry.id: entry for entry in (*discovered, *added)}
        shown = [e for e in found.values() if not (self._blocked and self._is_blocked(e))]
        return sorted(shown, key=lambda entry: (names.natural(entry.name), entry.distribution))

    def _all(self) -> Iterator[Entry]:
        if self._shows_discovered:
            yield from discovery.scan()
        yield from self._added

    def _is_blocked(self, entry: Entry) -> bool:
        known = names.words(entry)
        return any(names.hiding_words(word) & known for word in self._blocked)

    def _spec(self, kind: Kind, spec: str | None, place: str) -> str:
        if spec is not None:
            return spec
        if kind.default is None:
            raise PluginError(f"no {kind.name} was named, and there is no default.", where=place)
        return kind.default

    def _resolve(self, kind: Kind, spec: str, query: Any, place: str) -> tuple[Entry, Loaded]:
        if spec == AUTO and kind.auto and AUTO not in self.names(kind.name):
            best = pick(kind, [self._candidate(e) for e in self._distinct(kind)], query, place)
            return best.entry, self.load_entry(best.entry, where=place)
        entry = self.find_used(kind.name, spec, where=place)
        plugin = self.load_entry(entry, where=place)
        if not isinstance(plugin, Value):
            self._check_fit(kind, entry, plugin, query, place)
        return entry, plugin

    def _distinct(self, kind: Kind) -> list[Entry]:
        return _one_per_target(self.entries(kind.name))

    def _candidate(self, entry: Entry) -> Candidate:
        try:
            return Candidate(entry=entry, plugin=_class(self.load_entry(entry)))
        except ConfigError as error:
            return Candidate(entry=entry, reason=error.what.rstrip("."))

    def _check_fit(
        self, kind: Kind, entry: Entry, plugin: type[Plugin], query: Any, place: str
    ) -> None:
        reasons = reasons_against(plugin, query)
        if reasons:
            others = ", ".join(name for name in self.names(kind.name) if name != entry.name)
            fix = "choose auto." if kind.auto else f"choose another of: {others or 'none'}."
            raise PluginError(
                f"does not fit: {'; '.join(reasons)}.", where=f"{place} {entry.name}", fix=fix
            )


def selection_of(entry: Entry, options: dict[str, Any]) -> Selection:
    """Return an entry as data for other processes."""
    return Selection(
        kind=entry.kind,
        name=entry.name,
        target=entry.target,
        distribution=entry.distribution,
        options=options,
    )


def describe_metadata(entry: Entry) -> dict[str, Any]:
    """Return an entry's metadata as plain data; imports nothing."""
    return {
        "kind": entry.kind,
        "name": entry.name,
        "distribution": entry.distribution,
        "target": entry.target,
        "origin": entry.origin,
    }


def _describe_plugin(plugin: Loaded) -> dict[str, Any]:
    if isinstance(plugin, Value):
        return {"summary": plugin.summary, "value": plugin.value}
    known = plugin.known_capabilities
    return {
        "summary": plugin.info.summary,
        "source": plugin.info.source,
        "requires": list(plugin.info.requires),
        "extra": plugin.info.extra,
        "devices": list(plugin.info.devices),
        "interface_version": plugin.interface_version,
        "auto_rank": plugin.auto_rank,
        "capabilities": {word: known[word] for word in sorted(plugin.capabilities)},
        "expected_failures": dict(plugin.expected_failures),
        "options": describe_options(plugin),
    }


def _unavailable(what: str, reason: str, where: str) -> UnavailablePlugin:
    cause, fix = split_fix(reason)
    return UnavailablePlugin(f"{what}: {cause}", where=where, fix=fix)


def _offered(entry: Entry, text: str) -> str:
    return f"registered by {entry.distribution} but broken: {text}"


def _one_per_target(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without aliases: only the first name of each target."""
    return list({entry.target: entry for entry in reversed(list(entries))}.values())[::-1]


def _class(plugin: Loaded) -> type[Plugin]:
    if isinstance(plugin, Value):
        raise ConfigError("a constant has no options and is never chosen by auto.")
    return plugin
