"""Texts about a flag for --help and docs/reference/flags.md.

Choices come from the registry's metadata; no plugin is imported.
"""

from __future__ import annotations

import json
from typing import Any

from dovetail.config.compat.deprecated_flags import (
    MAPPED,
    NEWER,
    NOTHING,
    DeprecatedFlags,
    deprecated_flags,
    row_of,
)
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS
from dovetail.config.config import flags
from dovetail.config.parse.environment import variable_of
from dovetail.config.parse.flags import metavar
from dovetail.config.sections.convert import bounds_text
from dovetail.config.sections.field import Flag


def usage(flag: Flag) -> str:
    """Return the spellings with a placeholder, e.g. "-tp, --tensor-parallel-size N"."""
    if flag.value_type == "bool":
        return ", ".join(flag.spellings) + f", --no-{flag.spelling[2:]}"
    place = metavar(flag) or ""
    if flag.value_type == "list":
        place = f"{place} ..."
    if flag.meta.bare is not None:
        place = f"[{place}]"
    return f"{', '.join(flag.spellings)} {place}".rstrip()


def sentence(flag: Flag, *, is_listing_choices: bool = True) -> str:
    """Return help, unit, bounds, choices, default and support state as one text."""
    text = flag.meta.help
    facts = [fact for fact in (flag.meta.unit, bounds_text(flag)) if fact]
    if facts:
        text += f" ({', '.join(facts)})"
    names = choices(flag) if is_listing_choices else []
    if names:
        text += f". Choices: {', '.join(names)}"
    state, reason = state_of(flag)
    text += f". Default: {default_text(flag)}."
    return text if state == "supported" else f"{text} {state.capitalize()}: {reason}"


def state_of(flag: Flag) -> tuple[str, str]:
    """Return the flag's state, and its current name or the missing feature."""
    if flags().get(flag.name) == flag:
        missing = UNSUPPORTED_FLAGS.get(flag.name)
        return ("supported", "") if missing is None else ("unsupported", missing.missing)
    if flag.group == DeprecatedFlags.__name__:
        today = MAPPED[flag.name].today
        is_nothing = today.startswith(NOTHING)
        return "deprecated", f"{'it changes' if is_nothing else 'today'} {today}."
    if flag.group != NEWER:
        return "supported", ""
    row = row_of(flag.name)
    return row.state, f"{'the same as' if row.state == 'mapped' else 'it changes'} {row.today}."


def routes(flag: Flag) -> str:
    """Return the other ways to set a flag of `serve`; "" for flags of other commands."""
    own = (flags().get(flag.name), deprecated_flags().get(flag.name))
    if flag not in own and flag.group != NEWER:
        return ""
    return f"Variable: {variable_of(flag)}. In a YAML file: `{flag.spelling[2:]}: VALUE`."


def choices(flag: Flag, *, is_own_only: bool = False) -> list[str]:
    """Return the registered names for a flag with a plugin kind, "auto" first.

    `is_own_only` leaves out the plugins of other packages.
    """
    if flag.meta.kind is None:
        return []
    from dovetail import registry  # metadata is read only for help or docs

    entries = registry.entries(flag.meta.kind)
    shown = [e.name for e in entries if not is_own_only or e.is_own]
    names = list(dict.fromkeys(shown))
    if registry.KINDS[flag.meta.kind].auto:
        names = ["auto", *names]
    return sorted(names, key=lambda name: name != "auto")


def choice_rows(flag: Flag) -> list[tuple[str, str]]:
    """Return (name, one-line summary) of every choice; other packages' plugins name theirs."""
    from dovetail import registry
    from dovetail.registry.summaries import summary_of

    rows = {}
    for entry in registry.entries(flag.meta.kind) if flag.meta.kind else ():
        summary = summary_of(entry)
        if not entry.is_own:
            summary = f"{summary} ({entry.distribution})".lstrip()
        rows[entry.name if entry.name not in rows else entry.id] = summary
    if flag.meta.kind and registry.KINDS[flag.meta.kind].auto:
        rows.setdefault("auto", registry.KINDS[flag.meta.kind].auto)
    return sorted(rows.items(), key=lambda row: row[0] != "auto")


def is_class_kind(flag: Flag) -> bool:
    """Return whether the choices are classes, which may also be given by their path."""
    from dovetail import registry

    return flag.meta.kind is not None and not registry.KINDS[flag.meta.kind].is_value


def unavailable_rows(flag: Flag) -> list[tuple[str, str]]:
    """Return (names, reason) of well-known choices that are not available."""
    from dovetail import registry
    from dovetail.registry.unsupported_names import UNSUPPORTED_NAMES
    from dovetail.unsupported import what

    by_reason: dict[str, list[str]] = {}
    for name, feature in UNSUPPORTED_NAMES.get(flag.meta.kind or "", {}).items():
        if name in registry.names(flag.meta.kind or ""):
            continue  # an installed package has it
        by_reason.setdefault(what(feature), []).append(name)
    return [(", ".join(names), reason) for reason, names in by_reason.items()]


def default_text(flag: Flag) -> str:
    """Return the default as the user would type it."""
    if flag.meta.default_note is not None:
        return flag.meta.default_note
    return value_text(flag.default)


def value_text(value: Any) -> str:
    """Return a value as the user would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    if isinstance(value, dict):
        return json.dumps(value)
    return "none" if value is None else str(value)
