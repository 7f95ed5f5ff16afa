"""A flag in words: the lines that --help and docs/reference/flags.md show.

Choices come from the registry's metadata; no plugin is imported.
"""

from __future__ import annotations

import json
from typing import Any

from dovetail.config.convert import bounds_text
from dovetail.config.field import Flag
from dovetail.config.flags import metavar
from dovetail.config.ledger import REFUSED
from dovetail.config.older import MAPPED, older_flags


def usage(flag: Flag) -> str:
    """Return the spellings with the value's place, e.g. "-tp, --tensor-parallel-size N"."""
    if flag.shape == "bool":
        return ", ".join(flag.spellings) + f", --no-{flag.spelling[2:]}"
    place = metavar(flag) or ""
    if flag.shape == "list":
        place = f"{place} ..."
    return f"{', '.join(flag.spellings)} {place}".rstrip()


def sentence(flag: Flag) -> str:
    """Return help, unit, bounds, choices, default and what is not built as one text."""
    text = flag.meta.help
    facts = [fact for fact in (flag.meta.unit, bounds_text(flag)) if fact]
    if facts:
        text += f" ({', '.join(facts)})"
    names = choices(flag)
    if names:
        text += f". Choices: {', '.join(names)}"
    state, reason = state_of(flag)
    text += f". Default: {default_text(flag)}."
    return text if state == "honoured" else f"{text} {state.capitalize()}: {reason}"


def state_of(flag: Flag) -> tuple[str, str]:
    """Return the flag's state in the ledger, and what it is today or what it lacks."""
    if flag.name in older_flags():
        return "mapped", f"today {MAPPED[flag.name].today}."
    if flag.name in REFUSED:
        return "refused", REFUSED[flag.name].missing
    return "honoured", ""


def choices(flag: Flag, *, is_own_only: bool = False) -> list[str]:
    """Return the registered names for a flag with a plugin kind, "auto" first.

    `is_own_only` leaves out what other installed packages offer.
    """
    if flag.meta.kind is None:
        return []
    from dovetail import registry  # metadata is read only when help or docs are asked for

    entries = registry.entries(flag.meta.kind)
    shown = [e.name for e in entries if not is_own_only or e.distribution == registry.BUILT_IN]
    names = list(dict.fromkeys(shown))
    if registry.KINDS[flag.meta.kind].auto:
        names = ["auto", *names]
    return sorted(names, key=lambda name: name != "auto")


def default_text(flag: Flag) -> str:
    """Return the default as a person would type it."""
    if flag.meta.default_note is not None:
        return flag.meta.default_note
    return value_text(flag.default)


def value_text(value: Any) -> str:
    """Return a value as a person would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    if isinstance(value, dict):
        return json.dumps(value)
    return "none" if value is None else str(value)
