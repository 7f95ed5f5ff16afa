"""Catalog: the plugins that this process can name, from metadata alone.

Holds the discovered ones, those of files and of tests, and which of them are hidden. Imports none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from dovetail.registry import discovery, names
from dovetail.registry.entry import BUILT_IN, Entry
from dovetail.registry.kinds import KINDS, kind_named
from dovetail.registry.moved import unknown_groups

logger = logging.getLogger("dovetail.registry")

HOOKS = "hooks"


class Catalog:
    """The entries of all kinds."""

    def __init__(self) -> None:
        self._added: tuple[Entry, ...] = ()
        self._blocked: frozenset[str] = frozenset()
        self._shows_discovered = True
        self._sorted: dict[str, tuple[tuple[object, ...], list[Entry]]] = {}

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
        """Return the entries a name refers to. A file given by flag replaces installed plugins.

        Raises: UnknownPlugin
        """
        found = [entry for entry in self.entries(kind) if names.is_named(entry, spec)]
        if not found:
            raise names.unknown(kind, spec, place, names=self.names(kind), hidden=list(self._all()))
        return [entry for entry in found if entry.origin == "file"] or found

    def entry_of(self, kind: str, target: str) -> Entry:
        """Return the entry with a target, or one that is named by it."""
        known = (entry for entry in self.entries(kind) if entry.target == target)
        return next(known, None) or names.entry_of_target(kind, target, "")

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries, each once. Mutates: self"""
        known = {(entry.kind, entry.id) for entry in self._added}
        new = [entry for entry in entries if (entry.kind, entry.id) not in known]
        self._added = (*self._added, *new)

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

        Plugins added from files and hidden inside the block are forgotten at its end.
        """
        before = self._added, self._shows_discovered, self._blocked
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
        self._added = tuple(entries) if only else (*self._added, *entries)
        self._shows_discovered = self._shows_discovered and not only
        try:
            yield
        finally:
            self._added, self._shows_discovered, self._blocked = before

    def _entries_of(self, group: str) -> list[Entry]:
        """Return a group's entries, sorted again only after one of these three was replaced."""
        discovered = discovery.scan_kind(group) if self._shows_discovered else ()
        state = (discovered, self._added, self._blocked)
        known, entries = self._sorted.get(group, ((None,) * 3, []))
        if any(one is not other for one, other in zip(known, state, strict=True)):
            entries = self._sort(group, discovered)
            self._sorted[group] = state, entries
        return list(entries)

    def _sort(self, group: str, discovered: Iterable[Entry]) -> list[Entry]:
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
