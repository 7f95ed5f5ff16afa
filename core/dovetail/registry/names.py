"""Resolves a written name to entries, and makes the errors for names that have none.

Spellings of a distribution are compared like in pip (PEP 503). Imports no plugin.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dovetail.errors import AmbiguousPlugin, UnknownPlugin
from dovetail.registry.entry import Entry
from dovetail.registry.unsupported_names import instead_of, why_unsupported


def normal(distribution: str) -> str:
    """Return the normalized form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def is_named(entry: Entry, spec: str) -> bool:
    """Return whether a name, or name@distribution, refers to the entry."""
    name, _, distribution = spec.partition("@")
    if entry.name != name:
        return False
    return not distribution or normal(entry.distribution) == normal(distribution)


def words(entry: Entry) -> set[str]:
    """Return all words that can hide an entry (see `hiding_words`)."""
    distribution = normal(entry.distribution)
    return {
        entry.name,
        distribution,
        f"{entry.name}@{distribution}",
        f"{entry.kind}:{entry.name}",
    }


def hiding_words(word: str) -> set[str]:
    """Return the spellings under which `words` may contain what a user wrote."""
    name, at, distribution = word.partition("@")
    return {f"{name}@{normal(distribution)}"} if at else {word, normal(word)}


def entry_of_target(kind: str, spec: str, place: str) -> Entry:
    """Return the entry of package.module:Class or file.py:Class. Raises: UnknownPlugin"""
    module, _, attribute = spec.rpartition(":")
    if not module or not attribute:
        raise UnknownPlugin(
            f'"{spec}" names no class.',
            where=place,
            fix="write package.module:Class or file.py:Class.",
        )
    if attribute == "py":
        raise UnknownPlugin(
            f'"{spec}" names no class.',
            where=place,
            fix=f"a class of a file is written {module}.py:Class.",
        )
    is_file = module.endswith(".py")
    if is_file:
        module = str(Path(module).expanduser().resolve())
    return Entry(
        kind=kind,
        name=spec,
        distribution=Path(module).name if is_file else module.partition(".")[0],
        target=f"{module}:{attribute}",
        origin="path",
    )


def ambiguous(
    kind: str, name: str, matches: Sequence[Entry], place: str, *, flag: str
) -> AmbiguousPlugin:
    """Return the error for a name that several distributions offer. `flag` chooses one of them;
    empty if no flag does: then all but one can be hidden."""
    offers = " and ".join(entry.distribution for entry in matches)
    ids = [entry.id for entry in matches]
    said = f"{flag} " if flag and flag != place else ""
    fix = f"write {' or '.join(said + one for one in ids)}."
    if not flag:
        others = " or ".join(f"--no-plugin {one}" for one in ids)
        fix = f"hide all but one: {others}."
    return AmbiguousPlugin(f'{kind} "{name}" is offered by {offers}.', where=place, fix=fix)


def unknown(
    kind: str, spec: str, place: str, *, names: Sequence[str], hidden: Iterable[Entry]
) -> UnknownPlugin:
    """Return the error for a name that no entry has: the nearest names, and a likely reason."""
    near = nearest(spec.partition("@")[0], names)
    fix = f"registered: {', '.join(names) or 'none'}."
    if near:
        fix = f"nearest: {', '.join(near)}; {fix}"
    if spec.endswith(".py"):
        fix = f"a class of a file is written {spec}:Class; {fix}"
    elif "." in spec:
        module, _, attribute = spec.rpartition(".")
        fix = f"a class is written {module}:{attribute}; {fix}"
    reason, instead = why_unsupported(kind, spec), instead_of(kind, spec)
    if instead:
        fix = f"{instead}; {fix}"
    if any(entry.kind == kind and is_named(entry, spec) for entry in hidden):
        reason = "--no-plugin hides it"
    if reason is not None:
        return UnknownPlugin(f'"{spec}" is not available: {reason}.', where=place, fix=fix)
    return UnknownPlugin(f'there is no {kind} "{spec}".', where=place, fix=fix)


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return up to three names similar to the word, ignoring case."""
    by_small = {name.lower(): name for name in names}
    return [by_small[n] for n in difflib.get_close_matches(word.lower(), by_small, n=3)]


def natural(name: str) -> tuple[int, str, str]:
    """Return a sort key: numbers by size, then words, the lower-case spelling first."""
    return (int(name) if name.isdecimal() else -1, name.lower(), name.swapcase())
